#pragma once
// The types of CUDA's libraries for mathematics that libtorch's CUDA headers name. Bimetal does not
// use them: their packages would be a gigabyte, for these lines. The rest of CUDA's headers are
// NVIDIA's own (vendor_nccl.sh).

using cublasHandle_t = struct cublasContext*;
using cublasLtHandle_t = struct cublasLtContext*;
using cusparseHandle_t = struct cusparseContext*;
using cusolverDnHandle_t = struct cusolverDnContext*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cusparseStatus_t { CUSPARSE_STATUS_SUCCESS };
enum cusolverStatus_t { CUSOLVER_STATUS_SUCCESS };
