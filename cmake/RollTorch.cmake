# roll_find_torch(VAR): a Python that holds torch, which may not be the one that runs the tests: Debian's package serves
# /usr/bin/python3 only. Empty: none.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
function(roll_find_torch var)
  set(found "")
  foreach(python /usr/bin/python3 ${Python3_EXECUTABLE})
    execute_process(COMMAND ${python} -c
                    "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
                    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0 AND NOT found)
      set(found ${python})
    endif()
  endforeach()
  set(${var} "${found}" PARENT_SCOPE)
endfunction()
