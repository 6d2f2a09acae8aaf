/* ONNX Runtime by its C API. Words: the model; then "all", for a file as it comes, or "none", for one that it optimised and saved. */
#include <onnxruntime_c_api.h>
#include "turns.h"

static const OrtApi *api;
static OrtSession *session;
static OrtIoBinding *binding;

static void check(OrtStatus *status) {
  if (status) fail(api->GetErrorMessage(status));
}

static void open_model(struct ends *ends, int threads, char **words) {
  api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!api) fail("the library is older than its header");
  OrtEnv *environment;
  OrtSessionOptions *options;
  OrtMemoryInfo *memory;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "exported", &environment));
  check(api->CreateSessionOptions(&options));
  check(api->SetIntraOpNumThreads(options, threads));
  check(api->SetSessionGraphOptimizationLevel(options, strcmp(words[1], "none") ? ORT_ENABLE_ALL : ORT_DISABLE_ALL));
  check(api->CreateSession(environment, words[0], options, &session));
  check(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  check(api->CreateIoBinding(session, &binding));
  for (int i = 0; i < ends->inputs + ends->outputs; i++) {
    const int given = i < ends->inputs;
    struct end *end = given ? &ends->input[i] : &ends->output[i - ends->inputs];
    OrtValue *value;
    check(api->CreateTensorWithDataAsOrtValue(memory, end->data, end->bytes, end->shape, (size_t)end->rank,
                                              (ONNXTensorElementDataType)end->type, &value));
    check(given ? api->BindInput(binding, end->name, value) : api->BindOutput(binding, end->name, value));
  }
}

static void run_model(struct ends *ends) {
  (void)ends;
  check(api->RunWithBinding(session, NULL, binding));
}

static void end_model(void) {}
