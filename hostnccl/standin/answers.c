/*
 * answers.c: the functions of NVIDIA's mathematics libraries that must answer: write a handle, a size, a version, a
 * text. All others do nothing and return 0, which is success, in the libraries that `standins` writes; a function that
 * is here is left out there. The order of parameters is that of NVIDIA's documentation.
 *
 * Work that a library would launch on the device is skipped like a kernel: memory keeps what it held. A size of
 * workspace is 0. What would make a program read nonsense instead (files into device memory) is an error.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define ARGS                                                                                                           \
    void *a0, void *a1, void *a2, void *a3, void *a4, void *a5, void *a6, void *a7, void *a8, void *a9, void *a10,     \
        void *a11, void *a12, void *a13, void *a14, void *a15, void *a16, void *a17, void *a18, void *a19
#define UNUSED                                                                                                         \
    (void)a0, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8, (void)a9, (void)a10,     \
        (void)a11, (void)a12, (void)a13, (void)a14, (void)a15, (void)a16, (void)a17, (void)a18, (void)a19

/* A function whose parameters are all pointers or integers; the body may use a0 to a19, as far as there are so many. */
#define ANSWER(name, ...)                                                                                              \
    API int name(ARGS);                                                                                                \
    API int name(ARGS)                                                                                                 \
    {                                                                                                                  \
        UNUSED;                                                                                                        \
        __VA_ARGS__                                                                                                    \
        return 0;                                                                                                      \
    }
#define PUT(type, at, value)                                                                                           \
    if (at) {                                                                                                          \
        *(type *)(at) = (value);                                                                                       \
    }
#define INT(name, at)        ANSWER(name, PUT(int, at, 0))
#define SIZE(name, at)       ANSWER(name, PUT(size_t, at, 0))
#define SIZES(name, at, too) ANSWER(name, PUT(size_t, at, 0) PUT(size_t, too, 0))
#define POINTER(name, at)    ANSWER(name, PUT(void *, at, NULL))
#define HANDLE(name, at)     ANSWER(name, PUT(void *, at, handle))
#define TEXT(name)                                                                                                     \
    API const char *name(int code);                                                                                    \
    API const char *name(int code)                                                                                     \
    {                                                                                                                  \
        return code ? "an error of a stand-in library" : "success";                                                    \
    }
#define NUMBER(name, value)                                                                                            \
    API size_t name(void);                                                                                             \
    API size_t name(void)                                                                                              \
    {                                                                                                                  \
        return value;                                                                                                  \
    }
#define REAL(library, call, kind, at)    kind(library##S##call, at) kind(library##D##call, at)
#define COMPLEX(library, call, kind, at) kind(library##C##call, at) kind(library##Z##call, at)
#define FOUR(library, call, kind, at)    REAL(library, call, kind, at) COMPLEX(library, call, kind, at)

/* Newer than any program asks for: a program refuses a library that is older than the one it was compiled with. */
enum { CUDART_VERSION = 13000, CUDNN_MAJOR = 9, CUDNN_MINOR = 99 };

static char handle[4096]; /* what all handles point at */

/* cuBLAS */
INT(cublasGetMathMode, a1)
INT(cublasGetPointerMode_v2, a1)
INT(cublasGetAtomicsMode, a1)
INT(cublasGetSmCountTarget, a1)
INT(cublasGetProperty, a1)
ANSWER(cublasGetVersion_v2, PUT(int, a1, 130000))
POINTER(cublasGetStream_v2, a1)
TEXT(cublasGetStatusString)
TEXT(cublasGetStatusName)

/* cuBLASLt: one algorithm, which needs no workspace; its description has 96 bytes */
enum { ALGORITHM_BYTES = 96 };
NUMBER(cublasLtGetVersion, 130000)
NUMBER(cublasLtGetCudartVersion, CUDART_VERSION)
TEXT(cublasLtGetStatusString)
TEXT(cublasLtGetStatusName)
ANSWER(cublasLtMatmulAlgoGetHeuristic, memset(a8, 0, ALGORITHM_BYTES); PUT(int, a9, 1))
ANSWER(cublasLtMatmulAlgoCheck, memset(a7, 0, ALGORITHM_BYTES);)
ANSWER(cublasLtMatmulAlgoGetIds, PUT(int, a8, 0) PUT(int, a9, 1))
#define ATTRIBUTE(name)                                                                                                \
    ANSWER(                                                                                                            \
        name, if (a2) { memset(a2, 0, (size_t)a3); } PUT(size_t, a4, (size_t)a3))
ATTRIBUTE(cublasLtMatmulAlgoConfigGetAttribute)
ATTRIBUTE(cublasLtMatmulAlgoCapGetAttribute)
ATTRIBUTE(cublasLtMatmulDescGetAttribute)
ATTRIBUTE(cublasLtMatmulPreferenceGetAttribute)
ATTRIBUTE(cublasLtMatrixLayoutGetAttribute)

/* cuDNN; recurrent networks: rnn.c */
NUMBER(cudnnGetVersion, CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100)
NUMBER(cudnnGetCudartVersion, CUDART_VERSION)
NUMBER(cudnnGetMaxDeviceVersion, 900)
TEXT(cudnnGetErrorString)
POINTER(cudnnGetStream, a1)
HANDLE(cudnnBackendCreateDescriptor, a1)
SIZE(cudnnDropoutGetStatesSize, a1)
SIZE(cudnnDropoutGetReserveSpaceSize, a1)
SIZES(cudnnGetRNNTempSpaceSizes, a4, a5)
SIZE(cudnnGetConvolutionForwardWorkspaceSize, a6)
SIZE(cudnnGetConvolutionBackwardDataWorkspaceSize, a6)
SIZE(cudnnGetConvolutionBackwardFilterWorkspaceSize, a6)
SIZE(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, a8)
SIZE(cudnnGetBatchNormalizationBackwardExWorkspaceSize, a10)
SIZE(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, a5)
SIZE(cudnnGetCTCLossWorkspaceSize, a8)
SIZE(cudnnGetCTCLossWorkspaceSize_v8, a5)
INT(cudnnGetFilterNdDescriptor, a4)
ANSWER(cudnnGetProperty, PUT(int, a1, a0 == NULL ? CUDNN_MAJOR : (uintptr_t)a0 == 1 ? CUDNN_MINOR : 0))
ANSWER(cudnnGetLastErrorString, if (a1){PUT(char, a0, 0)})

/* An algorithm of a convolution: its description has 48 bytes, and 0 is the first algorithm. */
enum { PERFORMANCE_BYTES = 48 };
#define ALGORITHM(name, count, list) ANSWER(name, PUT(int, count, 1) memset(list, 0, PERFORMANCE_BYTES);)
ALGORITHM(cudnnGetConvolutionForwardAlgorithm_v7, a6, a7)
ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm_v7, a6, a7)
ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm_v7, a6, a7)
ALGORITHM(cudnnFindConvolutionForwardAlgorithmEx, a9, a10)
ALGORITHM(cudnnFindConvolutionBackwardDataAlgorithmEx, a9, a10)
ALGORITHM(cudnnFindConvolutionBackwardFilterAlgorithmEx, a9, a10)

/* One element of what was asked for; of numbers (type 3) it is 0, descriptors are the caller's own. */
enum { TYPE_INT64 = 3 };
ANSWER(cudnnBackendGetAttribute, PUT(int64_t, a4, (intptr_t)a3 > 0 ? 1 : 0) if ((uintptr_t)a2 == TYPE_INT64 &&
                                                                                (intptr_t)a3 > 0){PUT(int64_t, a5, 0)})

/* cuSPARSE */
TEXT(cusparseGetErrorString)
TEXT(cusparseGetErrorName)
ANSWER(cusparseGetVersion, PUT(int, a1, 12000))
POINTER(cusparseGetStream, a1)
INT(cusparseGetPointerMode, a1)
INT(cusparseCreateIdentityPermutation, NULL) /* it writes numbers on the device and no handle */
ANSWER(cusparseSpMatGetSize, PUT(int64_t, a1, 0) PUT(int64_t, a2, 0) PUT(int64_t, a3, 0))
SIZE(cusparseSpMV_bufferSize, a9)
SIZE(cusparseSpMM_bufferSize, a10)
SIZE(cusparseSDDMM_bufferSize, a10)
SIZE(cusparseSpSV_bufferSize, a9)
SIZE(cusparseSpSM_bufferSize, a10)
SIZE(cusparseSpGEMM_workEstimation, a11)
SIZE(cusparseSpGEMM_compute, a11)
SIZE(cusparseXcoosort_bufferSizeExt, a6)
SIZE(cusparseXcsrsort_bufferSizeExt, a6)
INT(cusparseXcsrgeam2Nnz, a13)
FOUR(cusparse, csrgeam2_bufferSizeExt, SIZE, a19)
FOUR(cusparse, bsrsv2_bufferSize, INT, a11)
FOUR(cusparse, bsrsm2_bufferSize, INT, a13)
ANSWER(cusparseXbsrsv2_zeroPivot, PUT(int, a2, -1)) /* none */
ANSWER(cusparseXbsrsm2_zeroPivot, PUT(int, a2, -1))
SIZE(cusparseLtMatmulGetWorkspace, a2)
SIZES(cusparseLtSpMMACompressedSize2, a2, a3)
ANSWER(
    cusparseLtMatmulAlgGetAttribute, if (a3) { memset(a3, 0, (size_t)a4); })

/* cuSOLVER */
FOUR(cusolverDn, getrf_bufferSize, INT, a5)
FOUR(cusolverDn, geqrf_bufferSize, INT, a5)
FOUR(cusolverDn, gesvd_bufferSize, INT, a3)
FOUR(cusolverDn, gesvdj_bufferSize, INT, a12)
FOUR(cusolverDn, gesvdjBatched_bufferSize, INT, a11)
FOUR(cusolverDn, gesvdaStridedBatched_bufferSize, INT, a16)
FOUR(cusolverDn, potrf_bufferSize, INT, a5)
FOUR(cusolverDn, sytrf_bufferSize, INT, a4)
REAL(cusolverDn, syevd_bufferSize, INT, a7)
REAL(cusolverDn, syevjBatched_bufferSize, INT, a7)
REAL(cusolverDn, syevj_bufferSize, INT, a7)
REAL(cusolverDn, orgqr_bufferSize, INT, a7)
REAL(cusolverDn, ormqr_bufferSize, INT, a11)
COMPLEX(cusolverDn, heevd_bufferSize, INT, a7)
COMPLEX(cusolverDn, heevjBatched_bufferSize, INT, a7)
COMPLEX(cusolverDn, heevj_bufferSize, INT, a7)
COMPLEX(cusolverDn, ungqr_bufferSize, INT, a7)
COMPLEX(cusolverDn, unmqr_bufferSize, INT, a11)
SIZES(cusolverDnXgeqrf_bufferSize, a10, a11)
SIZES(cusolverDnXpotrf_bufferSize, a8, a9)
SIZES(cusolverDnXsyevd_bufferSize, a11, a12)
SIZES(cusolverDnXsyevBatched_bufferSize, a11, a12)
SIZES(cusolverDnXgeev_bufferSize, a17, a18)
SIZES(cusolverDnXsytrs_bufferSize, a11, a12)

/* cuFFT: a plan is a number */
ANSWER(cufftCreate, PUT(int, a0, 1))
ANSWER(cufftPlan1d, PUT(int, a0, 1))
ANSWER(cufftPlan2d, PUT(int, a0, 1))
ANSWER(cufftPlan3d, PUT(int, a0, 1))
ANSWER(cufftPlanMany, PUT(int, a0, 1))
SIZE(cufftXtMakePlanMany, a12)
SIZE(cufftGetSize, a1)
ANSWER(cufftGetVersion, PUT(int, a0, 12000))

/* CUPTI: there are no activities */
enum { CUPTI_NO_MORE = 12 };
ANSWER(cuptiGetVersion, PUT(uint32_t, a0, 130000))
ANSWER(cuptiGetTimestamp, PUT(uint64_t, a0, 0))
HANDLE(cuptiSubscribe, a0)
SIZE(cuptiActivityGetNumDroppedRecords, a2)
ANSWER(cuptiActivityGetNextRecord, return CUPTI_NO_MORE;)
ANSWER(cuptiGetResultString, PUT(const char *, a1, "a result of a stand-in library"))
ANSWER(cuptiGetCallbackName, PUT(const char *, a2, "unknown"))

/* cuFile: no file goes to a device. The structs of its results fit a register. */
enum { CU_FILE_DRIVER_NOT_INITIALIZED = 5001 };
ANSWER(cuFileDriverOpen, return CU_FILE_DRIVER_NOT_INITIALIZED;)
ANSWER(cuFileHandleRegister, return CU_FILE_DRIVER_NOT_INITIALIZED;)
ANSWER(cuFileBufRegister, return CU_FILE_DRIVER_NOT_INITIALIZED;)
#define NO_FILE(name)                                                                                                  \
    API intptr_t name(void);                                                                                           \
    API intptr_t name(void)                                                                                            \
    {                                                                                                                  \
        return -1;                                                                                                     \
    }
NO_FILE(cuFileRead)
NO_FILE(cuFileWrite)

/* NVSHMEM: it has a version and no memory */
ANSWER(nvshmem_info_get_version, PUT(int, a0, 3) PUT(int, a1, 0))
