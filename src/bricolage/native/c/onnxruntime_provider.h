/* A model as a plug-in execution provider of ONNX Runtime. It claims the nodes EPContext whose source is its name, and runs them by the
   model's library, on ONNX Runtime's buffers. Before it stand the model's header and the macros PROVIDER (its name, a string), INPUTS,
   OUTPUTS and SIZES (of all inputs of a bucket together). */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef ONNXRUNTIME_HEADERS
#include <onnxruntime_c_api.h>
#else
#include "onnxruntime_abi.h"
#endif

/* Where the functions are, by ONNX Runtime's header as well as by ours. */
#define PLACE(table, function, number)                                                                                           \
  _Static_assert(offsetof(table, function) == (number) * sizeof(void *), #function " is elsewhere")
PLACE(OrtApi, CreateStatus, 0);
PLACE(OrtApi, GetTensorMutableData, 51);
PLACE(OrtApi, GetTensorElementType, 60);
PLACE(OrtApi, GetDimensionsCount, 61);
PLACE(OrtApi, GetDimensions, 62);
PLACE(OrtApi, GetTensorTypeAndShape, 65);
PLACE(OrtApi, KernelContext_GetInput, 90);
PLACE(OrtApi, KernelContext_GetOutput, 91);
PLACE(OrtApi, ReleaseStatus, 93);
PLACE(OrtApi, ReleaseTensorTypeAndShapeInfo, 99);
PLACE(OrtApi, ReadOpAttr, 272);
PLACE(OrtApi, GetValueInfoName, 289);
PLACE(OrtApi, GetKeyValuePairs, 298);
PLACE(OrtApi, ReleaseKeyValuePairs, 300);
PLACE(OrtApi, HardwareDevice_Type, 307);
PLACE(OrtApi, GetEpApi, 317);
PLACE(OrtApi, Graph_GetModelPath, 334);
PLACE(OrtApi, Graph_GetNumNodes, 344);
PLACE(OrtApi, Graph_GetNodes, 345);
PLACE(OrtApi, Node_GetOperatorType, 350);
PLACE(OrtApi, Node_GetDomain, 351);
PLACE(OrtApi, Node_GetNumInputs, 353);
PLACE(OrtApi, Node_GetInputs, 354);
PLACE(OrtApi, Node_GetNumOutputs, 355);
PLACE(OrtApi, Node_GetOutputs, 356);
PLACE(OrtApi, Node_GetAttributeByName, 361);
PLACE(OrtApi, GetSessionOptionsConfigEntries, 379);
PLACE(OrtEpApi, CreateEpDevice, 0);
PLACE(OrtEpApi, EpGraphSupportInfo_AddNodesToFuse, 2);
PLACE(OrtNodeComputeInfo, ReleaseState, 3);
PLACE(OrtEp, ReleaseNodeComputeInfos, 4);
PLACE(OrtEpFactory, CreateSyncStreamForDevice, 13);

enum { INTERFACE = 23, TEXT_BYTES = 1024, NOWHERE = -1 };

static const OrtApi *api;
static const OrtEpApi *ep_api;

/* Of a session. */
struct provider {
  OrtEp table; /* first: ONNX Runtime knows no more of it */
  model_options options;
  char *weights, *instructions; /* of the session's options, or NULL */
  OrtStatus *refusal; /* of the options: it is told where a node is compiled, since an error before makes Python go on without
                                   the provider */
};

/* A node EPContext of a session. */
struct context_node {
  OrtNodeComputeInfo table;
  model_handle *handle;
  /* Where the node that ONNX Runtime made of it has the library's inputs and outputs; NOWHERE for an output that is not used, which
     is then written to `unread`. */
  int inputs[INPUTS + 1], outputs[OUTPUTS + 1];
  void *unread[OUTPUTS + 1];
};

#define TRY(call)                                                                                                                \
  do {                                                                                                                           \
    OrtStatus *status_of_call = (call);                                                                                          \
    if (status_of_call) return status_of_call;                                                                                   \
  } while (0)

static OrtStatus *fail(OrtErrorCode code, const char *format, ...) {
  char text[TEXT_BYTES];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return api->CreateStatus(code, text);
}
static OrtStatus *fail_with(int32_t code) { return fail(ORT_EP_FAIL, PROVIDER ": %s", model_error(code)); }

static char *copy_text(const char *text) {
  char *copy = malloc(strlen(text) + 1);
  return copy ? strcpy(copy, text) : NULL;
}

/* --- attributes of a node --- */

/* An attribute; NULL where the node has none of this name. */
static const OrtOpAttr *find_attribute(const OrtNode *node, const char *name) {
  const OrtOpAttr *attribute = NULL;
  OrtStatus *status = api->Node_GetAttributeByName(node, name, &attribute);
  if (status) {
    api->ReleaseStatus(status);
    return NULL;
  }
  return attribute;
}

/* A copy of a text; NULL where the node has none of this name. */
static OrtStatus *read_text(const OrtNode *node, const char *name, char **text) {
  *text = NULL;
  const OrtOpAttr *attribute = find_attribute(node, name);
  if (!attribute) return NULL;
  size_t bytes = 0;
  OrtStatus *status = api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, NULL, 0, &bytes); /* fails, and says how many bytes */
  if (status) api->ReleaseStatus(status);
  char *copy = calloc(1, bytes + 1);
  if (!copy) return fail_with(MODEL_NO_MEMORY);
  status = bytes ? api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, copy, bytes, &bytes) : NULL;
  if (status) {
    free(copy);
    return status;
  }
  *text = copy;
  return NULL;
}

static OrtStatus *read_number(const OrtNode *node, const char *name, int64_t *number) {
  const OrtOpAttr *attribute = find_attribute(node, name);
  size_t bytes = 0;
  return attribute ? api->ReadOpAttr(attribute, ORT_OP_ATTR_INT, number, sizeof *number, &bytes) : NULL;
}

/* --- nodes --- */

static OrtStatus *is_claimed(const OrtNode *node, int *claimed) {
  const char *type = NULL, *domain = NULL;
  char *source = NULL;
  *claimed = 0;
  TRY(api->Node_GetOperatorType(node, &type));
  TRY(api->Node_GetDomain(node, &domain));
  if (strcmp(type, "EPContext") || strcmp(domain, "com.microsoft")) return NULL;
  TRY(read_text(node, "source", &source));
  *claimed = source && !strcmp(source, PROVIDER);
  free(source);
  return NULL;
}

static OrtStatus *get_capability(OrtEp *table, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
  (void)table;
  size_t count = 0;
  TRY(api->Graph_GetNumNodes(graph, &count));
  const OrtNode **nodes = calloc(count + 1, sizeof *nodes);
  if (!nodes) return fail_with(MODEL_NO_MEMORY);
  OrtStatus *status = api->Graph_GetNodes(graph, nodes, count);
  for (size_t i = 0; i < count && !status; i++) {
    int claimed = 0;
    status = is_claimed(nodes[i], &claimed);
    if (!status && claimed) status = ep_api->EpGraphSupportInfo_AddNodesToFuse(info, nodes + i, 1, NULL);
  }
  free(nodes);
  return status;
}

/* Places of the ends of a node EPContext among those of the node that was made of it, which has each value once, and only outputs that
   are used. */
static void match_ends(const OrtValueInfo *const *ends, size_t count, const OrtValueInfo *const *fused, size_t fused_count,
                       int *places) {
  for (size_t i = 0; i < count; i++) {
    places[i] = NOWHERE;
    const char *name = NULL, *other = NULL;
    if (!ends[i] || api->GetValueInfoName(ends[i], &name)) continue;
    for (size_t k = 0; k < fused_count && places[i] == NOWHERE; k++)
      if (fused[k] && !api->GetValueInfoName(fused[k], &other) && !strcmp(name, other)) places[i] = (int)k;
  }
}

static OrtStatus *match_inputs(const OrtNode *node, const OrtNode *fused, int *places) {
  const OrtValueInfo *ends[INPUTS + 1], *fused_ends[INPUTS + 1];
  size_t count = 0, fused_count = 0;
  TRY(api->Node_GetNumInputs(node, &count));
  TRY(api->Node_GetNumInputs(fused, &fused_count));
  if (count != INPUTS || fused_count > INPUTS)
    return fail(ORT_INVALID_ARGUMENT, PROVIDER ": the node has %zu inputs, and the library %d", count, INPUTS);
  TRY(api->Node_GetInputs(node, ends, count));
  TRY(api->Node_GetInputs(fused, fused_ends, fused_count));
  match_ends(ends, count, fused_ends, fused_count, places);
  for (size_t i = 0; i < count; i++)
    if (places[i] == NOWHERE)
      return fail(ORT_INVALID_ARGUMENT, PROVIDER ": the node lacks the input '%s'", model_input(0, (uint32_t)i)->name);
  return NULL;
}

static OrtStatus *match_outputs(const OrtNode *node, const OrtNode *fused, struct context_node *context) {
  const OrtValueInfo *ends[OUTPUTS + 1], *fused_ends[OUTPUTS + 1];
  size_t count = 0, fused_count = 0;
  TRY(api->Node_GetNumOutputs(node, &count));
  TRY(api->Node_GetNumOutputs(fused, &fused_count));
  if (count != OUTPUTS || fused_count > OUTPUTS)
    return fail(ORT_INVALID_ARGUMENT, PROVIDER ": the node has %zu outputs, and the library %d", count, OUTPUTS);
  TRY(api->Node_GetOutputs(node, ends, count));
  TRY(api->Node_GetOutputs(fused, fused_ends, fused_count));
  match_ends(ends, count, fused_ends, fused_count, context->outputs);
  for (uint32_t i = 0; i < count; i++) {
    size_t most = 1;
    if (context->outputs[i] != NOWHERE) continue;
    for (uint32_t bucket = 0; bucket < model_buckets(); bucket++)
      if (model_output(bucket, i)->bytes > most) most = model_output(bucket, i)->bytes;
    context->unread[i] = malloc(most);
    if (!context->unread[i]) return fail_with(MODEL_NO_MEMORY);
  }
  return NULL;
}

/* The path of the weights: of the session's option, or of the node's attribute, which is relative to the model's file. NULL where they
   are a part of the library. */
static OrtStatus *find_weights(const struct provider *provider, const OrtGraph *graph, const OrtNode *node, char **path) {
  int64_t embedded = 0;
  const char *model = NULL;
  char *given = NULL;
  *path = NULL;
  if (provider->weights) {
    *path = copy_text(provider->weights);
    return *path ? NULL : fail_with(MODEL_NO_MEMORY);
  }
  TRY(read_number(node, "embed_mode", &embedded));
  if (embedded) return NULL;
  TRY(read_text(node, "ep_cache_context", &given));
  if (!given) return fail(ORT_INVALID_ARGUMENT, PROVIDER ": the node has no attribute ep_cache_context, the path of weights");
  if (*given == '/') {
    *path = given;
    return NULL;
  }
  OrtStatus *status = api->Graph_GetModelPath(graph, &model);
  if (!status && !*model)
    status = fail(ORT_INVALID_ARGUMENT,
                  PROVIDER ": the model does not come from a file: name the folder of its weights in the option 'weights'");
  if (!status) {
    const char *slash = strrchr(model, '/');
    const int folder = slash ? (int)(slash - model) + 1 : 0;
    const size_t bytes = (size_t)folder + strlen(given) + 1;
    *path = malloc(bytes);
    if (*path) snprintf(*path, bytes, "%.*s%s", folder, model, given);
    if (!*path) status = fail_with(MODEL_NO_MEMORY);
  }
  free(given);
  return status;
}

static OrtStatus *open_weights(const struct provider *provider, const OrtGraph *graph, const OrtNode *node,
                               model_handle **handle) {
  char *path = NULL;
  TRY(find_weights(provider, graph, node, &path));
  const int32_t code = model_open(path, &provider->options, handle);
  OrtStatus *status = NULL;
  if (code && path) status = fail(ORT_EP_FAIL, PROVIDER ": %s: %s", path, model_error(code));
  if (code && !path) {
    const int needed = code == MODEL_NULL_ARGUMENT;
    status = fail(ORT_EP_FAIL, PROVIDER ": %s", needed ? "the library has no weights in it" : model_error(code));
  }
  free(path);
  return status;
}

/* --- runs --- */

/* The type and the sizes of an input, and its data. */
static OrtStatus *read_input(OrtKernelContext *context, int place, const model_tensor *expected, int64_t *sizes,
                             const void **data) {
  const OrtValue *value = NULL;
  OrtTensorTypeAndShapeInfo *info = NULL;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  size_t rank = 0;
  TRY(api->KernelContext_GetInput(context, (size_t)place, &value));
  if (!value) return fail(ORT_INVALID_ARGUMENT, PROVIDER ": there is no input '%s'", expected->name);
  TRY(api->GetTensorTypeAndShape(value, &info));
  OrtStatus *status = api->GetTensorElementType(info, &type);
  if (!status) status = api->GetDimensionsCount(info, &rank);
  if (!status && rank == expected->rank) status = api->GetDimensions(info, sizes, rank);
  api->ReleaseTensorTypeAndShapeInfo(info);
  if (status) return status;
  if (rank != expected->rank)
    return fail(ORT_INVALID_ARGUMENT, PROVIDER ": input '%s' has %zu dimensions, and not %u", expected->name, rank,
                (unsigned)expected->rank);
  if ((int32_t)type != expected->type)
    return fail(ORT_INVALID_ARGUMENT, PROVIDER ": input '%s' has the element type %d of ONNX, and not %d", expected->name,
                (int)type, (int)expected->type);
  return api->GetTensorMutableData((OrtValue *)value, (void **)data); /* it is only read */
}

static int has_sizes(uint32_t bucket, const int64_t *sizes) {
  for (uint32_t i = 0; i < INPUTS; i++) {
    const model_tensor *input = model_input(bucket, i);
    if (memcmp(sizes, input->shape, input->rank * sizeof *sizes)) return 0;
    sizes += input->rank;
  }
  return 1;
}

/* A text that grows up to the end of its room. */
struct text {
  size_t length;
  char room[TEXT_BYTES / 2];
};
static void add_text(struct text *text, const char *format, ...) {
  va_list values;
  va_start(values, format);
  const int more = vsnprintf(text->room + text->length, sizeof text->room - text->length, format, values);
  va_end(values);
  if (more > 0) text->length += (size_t)more;
  if (text->length >= sizeof text->room) text->length = sizeof text->room - 1;
}
static void add_inputs(struct text *text, const int64_t *sizes) {
  for (uint32_t i = 0; i < INPUTS; i++) {
    add_text(text, "%s%s ", i ? ", " : "", model_input(0, i)->name);
    for (uint32_t axis = 0; axis < model_input(0, i)->rank; axis++)
      add_text(text, "%s%lld", axis ? "x" : "", (long long)*sizes++);
  }
}

/* Why sizes are refused, with those that the library has. */
static OrtStatus *refuse_sizes(const int64_t *sizes) {
  struct text given = {0, ""}, had = {0, ""};
  add_inputs(&given, sizes);
  for (uint32_t bucket = 0; bucket < model_buckets() && model_dimensions(); bucket++)
    for (uint32_t d = 0; d < model_dimensions(); d++)
      add_text(&had, "%s%s=%lld",
               d        ? ", "
               : bucket ? "; "
                        : "",
               model_dimension_name(d), (long long)model_bucket_size(bucket, d));
  if (!model_dimensions()) {
    int64_t only[SIZES + 1], *size = only;
    for (uint32_t i = 0; i < INPUTS; i++)
      for (uint32_t axis = 0; axis < model_input(0, i)->rank; axis++) *size++ = model_input(0, i)->shape[axis];
    add_inputs(&had, only);
  }
  return fail(ORT_INVALID_ARGUMENT, PROVIDER ": the library was not made for %s. It was made for: %s", given.room, had.room);
}

static OrtStatus *compute(OrtNodeComputeInfo *table, void *state, OrtKernelContext *context) {
  (void)state;
  struct context_node *node = (struct context_node *)table;
  const void *inputs[INPUTS + 1];
  void *outputs[OUTPUTS + 1];
  int64_t sizes[SIZES + 1], *next = sizes;
  uint32_t bucket = 0;
  for (uint32_t i = 0; i < INPUTS; i++) {
    TRY(read_input(context, node->inputs[i], model_input(0, i), next, inputs + i));
    next += model_input(0, i)->rank;
  }
  while (bucket < model_buckets() && !has_sizes(bucket, sizes)) bucket++;
  if (bucket == model_buckets()) return refuse_sizes(sizes);
  for (uint32_t i = 0; i < OUTPUTS; i++) {
    const model_tensor *output = model_output(bucket, i);
    OrtValue *value = NULL;
    outputs[i] = node->unread[i];
    if (node->outputs[i] == NOWHERE) continue;
    TRY(api->KernelContext_GetOutput(context, (size_t)node->outputs[i], output->shape, output->rank, &value));
    TRY(api->GetTensorMutableData(value, outputs + i));
  }
  const int32_t code = model_run(node->handle, bucket, inputs, outputs);
  return code ? fail_with(code) : NULL;
}

static OrtStatus *create_state(OrtNodeComputeInfo *table, OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = table;
  return NULL;
}
static void release_state(OrtNodeComputeInfo *table, void *state) { (void)table, (void)state; }

/* --- sessions --- */

static void free_node(struct context_node *node) {
  if (node->handle) model_close(node->handle);
  for (uint32_t i = 0; i < OUTPUTS; i++) free(node->unread[i]);
  free(node);
}
static void release_nodes(OrtEp *table, OrtNodeComputeInfo **nodes, size_t count) {
  (void)table;
  for (size_t i = 0; i < count; i++)
    if (nodes[i]) free_node((struct context_node *)nodes[i]);
}

static OrtStatus *compile_node(const struct provider *provider, const OrtGraph *graph, const OrtNode *fused,
                               OrtNodeComputeInfo **compiled) {
  size_t count = 0;
  const OrtNode *original = NULL;
  TRY(api->Graph_GetNumNodes(graph, &count));
  if (count != 1) return fail(ORT_EP_FAIL, PROVIDER ": %zu nodes are to be one", count);
  TRY(api->Graph_GetNodes(graph, &original, 1));
  struct context_node *node = calloc(1, sizeof *node);
  if (!node) return fail_with(MODEL_NO_MEMORY);
  node->table.ort_version_supported = INTERFACE;
  node->table.CreateState = create_state;
  node->table.Compute = compute;
  node->table.ReleaseState = release_state;
  OrtStatus *status = match_inputs(original, fused, node->inputs);
  if (!status) status = match_outputs(original, fused, node);
  if (!status) status = open_weights(provider, graph, original, &node->handle);
  if (status) {
    free_node(node);
    return status;
  }
  *compiled = &node->table;
  return NULL;
}

static OrtStatus *compile(OrtEp *table, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          OrtNodeComputeInfo **compiled, OrtNode **contexts) {
  (void)contexts; /* the nodes are contexts already */
  struct provider *provider = (struct provider *)table;
  OrtStatus *status = provider->refusal;
  size_t done = 0;
  provider->refusal = NULL;
  while (!status && done < count) {
    status = compile_node(provider, graphs[done], fused[done], compiled + done);
    done += !status;
  }
  if (status) {
    release_nodes(table, compiled, done);
    for (size_t i = 0; i < count; i++) compiled[i] = NULL;
  }
  return status;
}

/* What stands behind "ep.NAME." in a session's option; NULL for other options. */
static const char *option_word(const char *key) {
  static const char words[] = "ep." PROVIDER ".";
  const char *word = words;
  while (*word && tolower((unsigned char)*word) == tolower((unsigned char)*key)) word++, key++;
  return *word ? NULL : key;
}

static OrtStatus *read_option(struct provider *provider, const char *word, const char *value) {
  static const char *const numbers[] = {"threads", "map_weights", "leave_helpers", "sleeps"};
  uint32_t *const targets[] = {&provider->options.threads, &provider->options.map_weights, &provider->options.leave_helpers,
                               &provider->options.sleeps};
  if (!strcmp(word, "weights") || !strcmp(word, "instructions")) {
    char **target = *word == 'w' ? &provider->weights : &provider->instructions;
    free(*target);
    *target = copy_text(value);
    return *target ? NULL : fail_with(MODEL_NO_MEMORY);
  }
  for (int i = 0; i < 4; i++) {
    if (strcmp(word, numbers[i])) continue;
    const unsigned most = i ? 1 : 65536;
    char *end = NULL;
    const unsigned long number = isdigit((unsigned char)*value) ? strtoul(value, &end, 10) : most + 1ul;
    if (number > most || *end)
      return fail(ORT_INVALID_ARGUMENT, PROVIDER ": the option '%s' is a number up to %u, and not '%s'", word, most, value);
    *targets[i] = (uint32_t)number;
    return NULL;
  }
  return fail(ORT_INVALID_ARGUMENT,
              PROVIDER ": there is no option '%s', only weights, threads, instructions, map_weights, leave_helpers and sleeps",
              word);
}

static OrtStatus *read_options(struct provider *provider, const OrtSessionOptions *session) {
  OrtKeyValuePairs *pairs = NULL;
  const char *const *keys = NULL, *const *values = NULL;
  size_t count = 0;
  OrtStatus *status = NULL;
  TRY(api->GetSessionOptionsConfigEntries(session, &pairs));
  api->GetKeyValuePairs(pairs, &keys, &values, &count);
  for (size_t i = 0; i < count && !status; i++) {
    const char *word = option_word(keys[i]);
    if (word) status = read_option(provider, word, values[i]);
  }
  api->ReleaseKeyValuePairs(pairs);
  provider->options.size = sizeof provider->options;
  provider->options.instructions = provider->instructions;
  return status;
}

static const char *provider_name(const OrtEp *table) {
  (void)table;
  return PROVIDER;
}

static void release_provider(OrtEpFactory *factory, OrtEp *table) {
  (void)factory;
  struct provider *provider = (struct provider *)table;
  if (!provider) return;
  if (provider->refusal) api->ReleaseStatus(provider->refusal);
  free(provider->weights);
  free(provider->instructions);
  free(provider);
}

static OrtStatus *create_provider(OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
                                  const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *session,
                                  const OrtLogger *logger, OrtEp **created) {
  (void)factory, (void)devices, (void)metadata, (void)count, (void)logger;
  struct provider *provider = calloc(1, sizeof *provider);
  if (!provider) return fail_with(MODEL_NO_MEMORY);
  provider->table.ort_version_supported = INTERFACE;
  provider->table.GetName = provider_name;
  provider->table.GetCapability = get_capability;
  provider->table.Compile = compile;
  provider->table.ReleaseNodeComputeInfos = release_nodes;
  provider->refusal = read_options(provider, session);
  *created = &provider->table;
  return NULL;
}

/* --- the library --- */

static const char *factory_name(const OrtEpFactory *factory) {
  (void)factory;
  return PROVIDER;
}
static const char *factory_vendor(const OrtEpFactory *factory) {
  (void)factory;
  return "bricolage";
}
static uint32_t factory_vendor_id(const OrtEpFactory *factory) {
  (void)factory;
  return 0;
}
static const char *factory_version(const OrtEpFactory *factory) {
  (void)factory;
  return "1.0.0";
}

/* Devices with memory of their own need these; ONNX Runtime calls some of them for a processor, too. */
static OrtStatus *validate_context(OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, const char *text,
                                   OrtCompiledModelCompatibility *compatibility) {
  (void)factory, (void)devices, (void)count, (void)text;
  *compatibility = OrtCompiledModelCompatibility_EP_NOT_APPLICABLE;
  return NULL;
}
static OrtStatus *create_allocator(OrtEpFactory *factory, const OrtMemoryInfo *info, const OrtKeyValuePairs *options,
                                   OrtAllocator **allocator) {
  (void)factory, (void)info, (void)options;
  *allocator = NULL;
  return NULL;
}
static void release_allocator(OrtEpFactory *factory, OrtAllocator *allocator) { (void)factory, (void)allocator; }
static OrtStatus *create_transfer(OrtEpFactory *factory, OrtDataTransferImpl **transfer) {
  (void)factory;
  *transfer = NULL;
  return NULL;
}
static bool has_streams(const OrtEpFactory *factory) {
  (void)factory;
  return false;
}
static OrtStatus *create_stream(OrtEpFactory *factory, const OrtMemoryDevice *device, const OrtKeyValuePairs *options,
                                OrtSyncStreamImpl **stream) {
  (void)factory, (void)device, (void)options;
  *stream = NULL;
  return NULL;
}

/* The processor, which is one device. */
static OrtStatus *find_devices(OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **chosen,
                               size_t most, size_t *chosen_count) {
  *chosen_count = 0;
  for (size_t i = 0; i < count && !*chosen_count && most; i++)
    if (api->HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_CPU) {
      TRY(ep_api->CreateEpDevice(factory, devices[i], NULL, NULL, chosen));
      *chosen_count = 1;
    }
  return NULL;
}

#define EXPORTED __attribute__((visibility("default")))
EXPORTED OrtStatus *CreateEpFactories(const char *registered, const OrtApiBase *base, const OrtLogger *logger,
                                      OrtEpFactory **factories, size_t most, size_t *count);
EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

OrtStatus *CreateEpFactories(const char *registered, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
                             size_t most, size_t *count) {
  (void)registered, (void)logger;
  *count = 0;
  const OrtApi *oldest = base->GetApi(1);
  if (!oldest) return NULL; /* without it there is no status */
  const OrtApi *asked = base->GetApi(INTERFACE);
  if (!asked) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, PROVIDER " needs ONNX Runtime 1.%d or newer, and this is %s", INTERFACE,
             base->GetVersionString());
    return oldest->CreateStatus(ORT_NOT_IMPLEMENTED, text);
  }
  api = asked;
  ep_api = asked->GetEpApi();
  OrtEpFactory *factory = most ? calloc(1, sizeof *factory) : NULL;
  if (!factory) return fail_with(MODEL_NO_MEMORY);
  factory->ort_version_supported = INTERFACE;
  factory->GetName = factory_name;
  factory->GetVendor = factory_vendor;
  factory->GetSupportedDevices = find_devices;
  factory->CreateEp = create_provider;
  factory->ReleaseEp = release_provider;
  factory->GetVendorId = factory_vendor_id;
  factory->GetVersion = factory_version;
  factory->ValidateCompiledModelCompatibilityInfo = validate_context;
  factory->CreateAllocator = create_allocator;
  factory->ReleaseAllocator = release_allocator;
  factory->CreateDataTransfer = create_transfer;
  factory->IsStreamAware = has_streams;
  factory->CreateSyncStreamForDevice = create_stream;
  factories[0] = factory;
  *count = 1;
  return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  free(factory);
  return NULL;
}
