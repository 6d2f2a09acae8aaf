/* OpenVINO by its C API. Words: the model; then a folder of compiled models, or "none". */
#include <openvino/c/openvino.h>
#include "turns.h"

static ov_infer_request_t *request;

static void check(ov_status_e status) {
  if (status != OK) fail(ov_get_error_info(status));
}

/* Element types by ONNX's numbers. */
static ov_element_type_e element_type(int type) {
  static const ov_element_type_e types[] = {DYNAMIC, F32, U8, I8, U16, I16, I32, I64, STRING, BOOLEAN, F16, F64, U32, U64};
  return types[type];
}

static void open_model(struct ends *ends, int threads, char **words) {
  ov_core_t *core;
  ov_compiled_model_t *compiled;
  char count[16];
  snprintf(count, sizeof count, "%d", threads);
  check(ov_core_create(&core));
  check(ov_core_set_property(core, "CPU", "INFERENCE_NUM_THREADS", count));
  check(ov_core_set_property(core, "CPU", "INFERENCE_PRECISION_HINT", "f32"));
  check(ov_core_set_property(core, "CPU", "PERFORMANCE_HINT", "LATENCY"));
  if (strcmp(words[1], "none")) check(ov_core_set_property(core, NULL, "CACHE_DIR", words[1]));
  check(ov_core_compile_model_from_file(core, words[0], "CPU", 0, &compiled));
  check(ov_compiled_model_create_infer_request(compiled, &request));
  for (int i = 0; i < ends->inputs + ends->outputs; i++) {
    const int given = i < ends->inputs;
    struct end *end = given ? &ends->input[i] : &ends->output[i - ends->inputs];
    ov_shape_t shape;
    ov_tensor_t *tensor;
    check(ov_shape_create(end->rank, end->shape, &shape));
    check(ov_tensor_create_from_host_ptr(element_type(end->type), shape, end->data, &tensor));
    check(ov_infer_request_set_tensor(request, end->name, tensor));
  }
}

static void run_model(struct ends *ends) {
  (void)ends;
  check(ov_infer_request_infer(request));
}

static void end_model(void) {}
