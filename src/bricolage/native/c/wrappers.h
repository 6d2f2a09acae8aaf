/* The public functions of a model: its tables, and what all models share. */
uint32_t model_abi_version(void) { return MODEL_ABI_VERSION; }
const char *model_error(int32_t code) { return LIBRARY(error)(code); }
int32_t model_open(const char *path, const model_options *options, model_handle **handle) {
  return LIBRARY(open)(&library, path, options, handle);
}
int32_t model_open_memory(const void *weights, size_t bytes, const model_options *options, model_handle **handle) {
  return LIBRARY(open_memory)(&library, weights, bytes, options, handle);
}
int32_t model_close(model_handle *handle) { return LIBRARY(close)(handle); }
int32_t model_run(model_handle *handle, uint32_t bucket, const void *const *inputs, void *const *outputs) {
  return LIBRARY(run)(&library, handle, bucket, inputs, outputs);
}
uint32_t model_buckets(void) { return library.buckets; }
uint32_t model_dimensions(void) { return library.dimensions; }
const char *model_dimension_name(uint32_t dimension) { return dimension < library.dimensions ? library.names[dimension] : NULL; }
int64_t model_bucket_size(uint32_t bucket, uint32_t dimension) {
  const int inside = bucket < library.buckets && dimension < library.dimensions;
  return inside ? library.sizes[bucket * library.dimensions + dimension] : -1;
}
int32_t model_find_bucket(const int64_t *sizes, uint32_t *bucket) { return LIBRARY(find_bucket)(&library, sizes, bucket); }
uint32_t model_inputs(void) { return library.inputs; }
uint32_t model_outputs(void) { return library.outputs; }
const model_tensor *model_input(uint32_t bucket, uint32_t number) {
  return bucket < library.buckets && number < library.inputs ? library.set->buckets[bucket].inputs + number : NULL;
}
const model_tensor *model_output(uint32_t bucket, uint32_t number) {
  return bucket < library.buckets && number < library.outputs ? library.set->buckets[bucket].outputs + number : NULL;
}
const char *model_instructions(const model_handle *handle) { return LIBRARY(instructions)(handle); }
const char *model_instructions_name(uint32_t number) { return number < library.sets ? library.set[number].name : NULL; }
int32_t model_instructions_run(uint32_t number) { return number < library.sets && library.set[number].runs(); }
size_t model_memory(const model_handle *handle) { return LIBRARY(memory)(handle); }
model_team *model_team_of(model_handle *handle) { return LIBRARY(team_of)(handle); }
model_team *model_team_make(uint32_t threads, uint32_t leave_helpers) {
  return LIBRARY(team_make)(&library, threads, leave_helpers);
}
void model_team_release(model_team *team) { LIBRARY(team_release)(&library, team); }
