# roll_flags: an interface library that every target of our own links: warnings as errors, include root, sanitizers.
#
# ROLL_SANITIZE = address | thread | "" ; ROLL_COVERAGE, ROLL_FUZZ = ON | OFF. Third-party headers come in as SYSTEM.
set(ROLL_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")
option(ROLL_COVERAGE "instrument for gcov" OFF)
option(ROLL_FUZZ "build the libFuzzer targets (clang only)" OFF)
option(ROLL_WERROR "warnings are errors" ON)

add_library(roll_flags INTERFACE)
target_include_directories(roll_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(roll_flags INTERFACE _GNU_SOURCE ROLL_VERSION="${PROJECT_VERSION}")
target_compile_options(roll_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes -Wshadow -Wconversion -Wvla>
  $<$<COMPILE_LANGUAGE:C>:-fno-omit-frame-pointer>
  $<$<COMPILE_LANGUAGE:C>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
if(ROLL_WERROR)
  target_compile_options(roll_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
if(ROLL_SANITIZE STREQUAL "address")
  target_compile_options(roll_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(roll_flags INTERFACE -fsanitize=address,undefined)
elseif(ROLL_SANITIZE STREQUAL "thread")
  target_compile_options(roll_flags INTERFACE -fsanitize=thread)
  target_link_options(roll_flags INTERFACE -fsanitize=thread)
endif()
if(ROLL_COVERAGE)
  target_compile_options(roll_flags INTERFACE --coverage -O0)
  target_link_options(roll_flags INTERFACE --coverage)
endif()

# roll_fuzz_target(NAME sources... LIBS libs...): build/bin/NAME, a libFuzzer program. Only with ROLL_FUZZ.
# The libraries fuzzed are compiled with coverage instrumentation because the whole fuzz tree is.
if(ROLL_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ROLL_FUZZ needs clang: cmake --preset fuzz")
  endif()
  target_compile_options(roll_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  target_link_options(roll_flags INTERFACE -fsanitize=address,undefined)
endif()
function(roll_fuzz_target name)
  cmake_parse_arguments(F "" "" "LIBS" ${ARGN})
  if(ROLL_FUZZ)
    add_executable(${name} ${F_UNPARSED_ARGUMENTS})
    target_link_libraries(${name} PRIVATE ${F_LIBS} roll_flags)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY ROLL_FUZZ_TARGETS ${name})
  endif()
endfunction()
