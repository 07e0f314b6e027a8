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

# roll_fuzz_target(fuzz_NAME sources... LIBS libs... [SEEDS folder]): build/bin/fuzz_NAME, a libFuzzer program, and the
# test fuzz.NAME, which runs it for ROLL_FUZZ_SECONDS on a corpus of its own that begins with the seeds. Only with
# ROLL_FUZZ.
# The libraries fuzzed are compiled with coverage instrumentation because the whole fuzz tree is.
set(ROLL_FUZZ_SECONDS 60 CACHE STRING "how long `ctest -L fuzz` runs each target")
if(ROLL_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ROLL_FUZZ needs clang: cmake --preset fuzz")
  endif()
  # Fuzzers agree on this name: large tables may be small.
  target_compile_definitions(roll_flags INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
  target_compile_options(roll_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
                         -fno-sanitize-recover=undefined)
  target_link_options(roll_flags INTERFACE -fsanitize=address,undefined)
endif()
# What is installed, one call beside each install(): the target `product` builds just that.
function(roll_product)
  set_property(GLOBAL APPEND PROPERTY ROLL_PRODUCTS ${ARGN})
endfunction()

function(roll_fuzz_target target)
  cmake_parse_arguments(F "" "SEEDS" "LIBS" ${ARGN})
  if(NOT ROLL_FUZZ)
    return()
  endif()
  string(REPLACE "fuzz_" "" name ${target})
  # Each input has a bound of processor time and one of memory; -timeout, by the clock on the wall, is for hangs.
  add_executable(${target} ${F_UNPARSED_ARGUMENTS} ${PROJECT_SOURCE_DIR}/tests/trace/fuzz/bounds.c)
  target_link_libraries(${target} PRIVATE ${F_LIBS} roll_flags)
  target_link_options(${target} PRIVATE -fsanitize=fuzzer -Wl,--wrap=LLVMFuzzerTestOneInput)
  set_property(GLOBAL APPEND PROPERTY ROLL_FUZZ_TARGETS ${target})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz/${name})
  math(EXPR limit "${ROLL_FUZZ_SECONDS} + 60")
  add_test(NAME fuzz.${name} COMMAND ${target} -max_total_time=${ROLL_FUZZ_SECONDS} -rss_limit_mb=2048 -timeout=120
           -print_final_stats=1 -artifact_prefix=${PROJECT_BINARY_DIR}/fuzz/${name}- ${PROJECT_BINARY_DIR}/fuzz/${name}
           ${F_SEEDS})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT ${limit})
endfunction()
