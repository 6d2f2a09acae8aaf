/* What a provider uses of ONNX Runtime's C interface, version 23 (ONNX Runtime 1.23 and newer): tables of functions, which keep their
   places in all later versions, under the names of its own header. The other functions of a table are gaps. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum OrtErrorCode { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9, ORT_EP_FAIL = 11 } OrtErrorCode;
typedef enum OrtOpAttrType { ORT_OP_ATTR_INT = 1, ORT_OP_ATTR_STRING = 5 } OrtOpAttrType;
typedef enum OrtHardwareDeviceType { OrtHardwareDeviceType_CPU = 0 } OrtHardwareDeviceType;
typedef enum OrtCompiledModelCompatibility { OrtCompiledModelCompatibility_EP_NOT_APPLICABLE = 0 } OrtCompiledModelCompatibility;
typedef enum ONNXTensorElementDataType { ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0 } ONNXTensorElementDataType;

typedef struct OrtStatus OrtStatus;
typedef struct OrtLogger OrtLogger;
typedef struct OrtValue OrtValue;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeFusionOptions OrtNodeFusionOptions;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtMemoryDevice OrtMemoryDevice;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;
typedef struct OrtSyncStreamImpl OrtSyncStreamImpl;
typedef struct OrtApi OrtApi;
typedef struct OrtEpApi OrtEpApi;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

/* The functions from one number to another, the second one excluded. */
#define GAP(first, next) void *gap_##first[(next) - (first)]

struct OrtApi {
  OrtStatus *(*CreateStatus)(OrtErrorCode, const char *);
  GAP(1, 51);
  OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
  GAP(52, 60);
  OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *, ONNXTensorElementDataType *);
  OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
  OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t);
  GAP(63, 65);
  OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **);
  GAP(66, 90);
  OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *, size_t, const OrtValue **);
  OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **);
  GAP(92, 93);
  void (*ReleaseStatus)(OrtStatus *);
  GAP(94, 99);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *);
  GAP(100, 272);
  OrtStatus *(*ReadOpAttr)(const OrtOpAttr *, OrtOpAttrType, void *, size_t, size_t *);
  GAP(273, 289);
  OrtStatus *(*GetValueInfoName)(const OrtValueInfo *, const char **);
  GAP(290, 298);
  void (*GetKeyValuePairs)(const OrtKeyValuePairs *, const char *const **, const char *const **, size_t *);
  GAP(299, 300);
  void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *);
  GAP(301, 307);
  OrtHardwareDeviceType (*HardwareDevice_Type)(const OrtHardwareDevice *);
  GAP(308, 317);
  const OrtEpApi *(*GetEpApi)(void);
  GAP(318, 334);
  OrtStatus *(*Graph_GetModelPath)(const OrtGraph *, const char **);
  GAP(335, 344);
  OrtStatus *(*Graph_GetNumNodes)(const OrtGraph *, size_t *);
  OrtStatus *(*Graph_GetNodes)(const OrtGraph *, const OrtNode **, size_t);
  GAP(346, 350);
  OrtStatus *(*Node_GetOperatorType)(const OrtNode *, const char **);
  OrtStatus *(*Node_GetDomain)(const OrtNode *, const char **);
  GAP(352, 353);
  OrtStatus *(*Node_GetNumInputs)(const OrtNode *, size_t *);
  OrtStatus *(*Node_GetInputs)(const OrtNode *, const OrtValueInfo **, size_t);
  OrtStatus *(*Node_GetNumOutputs)(const OrtNode *, size_t *);
  OrtStatus *(*Node_GetOutputs)(const OrtNode *, const OrtValueInfo **, size_t);
  GAP(357, 361);
  OrtStatus *(*Node_GetAttributeByName)(const OrtNode *, const char *, const OrtOpAttr **);
  GAP(362, 379);
  OrtStatus *(*GetSessionOptionsConfigEntries)(const OrtSessionOptions *, OrtKeyValuePairs **);
};

struct OrtEpApi {
  OrtStatus *(*CreateEpDevice)(OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *, const OrtKeyValuePairs *,
                               OrtEpDevice **);
  GAP(1, 2);
  OrtStatus *(*EpGraphSupportInfo_AddNodesToFuse)(OrtEpGraphSupportInfo *, const OrtNode *const *, size_t,
                                                  const OrtNodeFusionOptions *);
};

/* Tables that the provider fills. It leaves out what is behind the functions that it has, with room for what versions add. */
struct OrtNodeComputeInfo {
  uint32_t ort_version_supported;
  OrtStatus *(*CreateState)(OrtNodeComputeInfo *, OrtNodeComputeContext *, void **);
  OrtStatus *(*Compute)(OrtNodeComputeInfo *, void *, OrtKernelContext *);
  void (*ReleaseState)(OrtNodeComputeInfo *, void *);
};

struct OrtEp {
  uint32_t ort_version_supported;
  const char *(*GetName)(const OrtEp *);
  OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
  OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **, size_t, OrtNodeComputeInfo **, OrtNode **);
  void (*ReleaseNodeComputeInfos)(OrtEp *, OrtNodeComputeInfo **, size_t);
  GAP(5, 64);
};

struct OrtEpFactory {
  uint32_t ort_version_supported;
  const char *(*GetName)(const OrtEpFactory *);
  const char *(*GetVendor)(const OrtEpFactory *);
  OrtStatus *(*GetSupportedDevices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t, size_t *);
  OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                         const OrtSessionOptions *, const OrtLogger *, OrtEp **);
  void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
  uint32_t (*GetVendorId)(const OrtEpFactory *);
  const char *(*GetVersion)(const OrtEpFactory *);
  OrtStatus *(*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, const char *,
                                                       OrtCompiledModelCompatibility *);
  OrtStatus *(*CreateAllocator)(OrtEpFactory *, const OrtMemoryInfo *, const OrtKeyValuePairs *, OrtAllocator **);
  void (*ReleaseAllocator)(OrtEpFactory *, OrtAllocator *);
  OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, OrtDataTransferImpl **);
  bool (*IsStreamAware)(const OrtEpFactory *);
  OrtStatus *(*CreateSyncStreamForDevice)(OrtEpFactory *, const OrtMemoryDevice *, const OrtKeyValuePairs *,
                                          OrtSyncStreamImpl **);
  GAP(14, 64);
};
#undef GAP
