<<<<<<< HEAD
# Finds what rollcall can use. Required: libzmq, libdw, libunwind, zstd, jansson, libmicrohttpd, libsodium, ncursesw, a BLAS.
# Optional: cmocka, CUDA, the vendor's NCCL and CUDA headers, LTTng-UST, SQLite, protobuf-c.
# Each thing left out is named in the summary.
=======
# Finds what rollcall can use. Required: libzmq, libdw, libunwind, zstd, jansson, libmicrohttpd, libsodium,
# ncursesw, a BLAS.
# Optional: cmocka, CUDA, the vendor's NCCL and CUDA headers, LTTng-UST. Each thing left out is named in the summary.
>>>>>>> h-web
find_package(Threads REQUIRED)

# What runs inside a rank, and the GPU checks: for a machine that has CUDA and NCCL, and none of the daemon's libraries.
option(ROLL_RANK_ONLY "build trace, interposer, moe_core, kernels and the GPU checks only, against the vendor's NCCL"
       OFF)
if(NOT ROLL_RANK_ONLY)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
  pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
  pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
  pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
  pkg_check_modules(NCURSESW REQUIRED IMPORTED_TARGET ncursesw)
  pkg_check_modules(DW REQUIRED IMPORTED_TARGET libdw)
  pkg_check_modules(UNWIND REQUIRED IMPORTED_TARGET libunwind-ptrace)
  pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
  pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
  pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
  pkg_check_modules(LTTNGUST IMPORTED_TARGET lttng-ust)
  pkg_check_modules(SQLITE IMPORTED_TARGET sqlite3)
  pkg_check_modules(PROTOBUFC IMPORTED_TARGET libprotobuf-c)
  find_program(ROLL_PROTOC_C protoc-c)
endif()

set_property(GLOBAL PROPERTY ROLL_LEFT_OUT "")
function(roll_left_out what why)
  set_property(GLOBAL APPEND PROPERTY ROLL_LEFT_OUT "${what}: ${why}")
endfunction()

# The vendor's headers, where present: programs are compiled against them, and our own headers are checked against them.
option(ROLL_USE_VENDOR_HEADERS "compile against the vendor's nccl.h and cuda_runtime.h where present" ON)
find_path(ROLL_VENDOR_NCCL_INCLUDE nccl.h HINTS /usr/local/cuda/include /usr/include)
find_path(ROLL_VENDOR_CUDA_INCLUDE cuda_runtime.h HINTS /usr/local/cuda/include /usr/include)
# His library, only to compare with: tests read and run it, nothing is linked with it.
find_library(ROLL_VENDOR_NCCL_LIBRARY libnccl.so.2 HINTS /usr/local/cuda/lib64 /usr/local/cuda/lib)
if(NOT ROLL_USE_VENDOR_HEADERS)
  set(ROLL_VENDOR_NCCL_LIBRARY ROLL_VENDOR_NCCL_LIBRARY-NOTFOUND)
  set(ROLL_VENDOR_NCCL_INCLUDE ROLL_VENDOR_NCCL_INCLUDE-NOTFOUND)
  set(ROLL_VENDOR_CUDA_INCLUDE ROLL_VENDOR_CUDA_INCLUDE-NOTFOUND)
endif()
# roll_nccl_headers: what programs that use NCCL and the CUDA runtime compile against. Both come from one source: the
# vendor's nccl.h includes the vendor's CUDA headers.
add_library(roll_nccl_headers INTERFACE)
if(ROLL_VENDOR_NCCL_INCLUDE AND ROLL_VENDOR_CUDA_INCLUDE)
  set(ROLL_HAVE_VENDOR_HEADERS ON)
  target_include_directories(roll_nccl_headers SYSTEM INTERFACE ${ROLL_VENDOR_NCCL_INCLUDE} ${ROLL_VENDOR_CUDA_INCLUDE})
else()
  set(ROLL_HAVE_VENDOR_HEADERS OFF)
  roll_left_out("vendor headers"
                "nccl.h and cuda_runtime.h not found, our own headers of the same ABI are used, unchecked")
  target_include_directories(roll_nccl_headers SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/hostnccl/include)
endif()

option(ROLL_CUDA "build kernels/ when a CUDA compiler is present" ON)
set(ROLL_HAVE_CUDA OFF)
if(ROLL_CUDA AND NOT ROLL_SANITIZE AND NOT ROLL_FUZZ)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a)
    endif()
    enable_language(CUDA)
    set(ROLL_HAVE_CUDA ON)
  endif()
endif()
if(NOT ROLL_HAVE_CUDA)
  roll_left_out("kernels" "no CUDA compiler (or a sanitizer build), moe_core has its host back end")
endif()
if(NOT LTTNGUST_FOUND AND NOT ROLL_RANK_ONLY)
  roll_left_out("LTTng-UST comparison" "liblttng-ust-dev not found, roll_bench prints our side only")
endif()

set(ROLL_HAVE_SQLITE ${SQLITE_FOUND})
set(ROLL_HAVE_PERFETTO OFF)
if(PROTOBUFC_FOUND AND ROLL_PROTOC_C)
  set(ROLL_HAVE_PERFETTO ON)
endif()
if(NOT ROLL_HAVE_SQLITE AND NOT ROLL_RANK_ONLY)
  roll_left_out("rollcall export --sqlite" "libsqlite3-dev not found")
endif()
if(NOT ROLL_HAVE_PERFETTO AND NOT ROLL_RANK_ONLY)
  roll_left_out("rollcall export --perfetto" "protobuf-c-compiler or libprotobuf-c-dev not found")
endif()

if(ROLL_RANK_ONLY)
  roll_left_out("daemon, console, moe_train, stand-ins, tests" "ROLL_RANK_ONLY")
endif()

function(roll_print_summary)
  get_property(left GLOBAL PROPERTY ROLL_LEFT_OUT)
  message(STATUS
          "rollcall ${PROJECT_VERSION} (${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION})")
  foreach(item IN LISTS left)
    message(STATUS "  left out: ${item}")
  endforeach()
  if(NOT left)
    message(STATUS "  nothing left out")
  endif()
endfunction()
