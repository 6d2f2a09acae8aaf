/* A model that bricolage exported, linked into the program. MODEL is the prefix of its names; words: the folder of its
   weights, and whether they are "mapped" or "copied". Everything that the library may allocate with is counted: the linker wraps it. */
#include MODEL_HEADER
#include "turns.h"

#define JOIN(a, b) a##b
#define PREFIXED(a, b) JOIN(a, b)
#define MODEL_(name) PREFIXED(MODEL, _##name)

static long allocations;
#define COUNTED(type, name, arguments, passed)                                                                                   \
  type __real_##name arguments;                                                                                                  \
  type __wrap_##name arguments {                                                                                                 \
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);                                                                       \
    return __real_##name passed;                                                                                                 \
  }
COUNTED(void *, malloc, (size_t bytes), (bytes))
COUNTED(void *, calloc, (size_t count, size_t bytes), (count, bytes))
COUNTED(void *, realloc, (void *block, size_t bytes), (block, bytes))
COUNTED(void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
COUNTED(int, posix_memalign, (void **block, size_t alignment, size_t bytes), (block, alignment, bytes))
COUNTED(void *, mmap, (void *at, size_t bytes, int kind, int flags, int file, long offset),
        (at, bytes, kind, flags, file, offset))

static MODEL_(handle) * model;
static const void *inputs[MOST_ENDS];
static void *outputs[MOST_ENDS];
static long in_runs, runs;

static void open_model(struct ends *ends, int threads, char **words) {
  MODEL_(options) options = {sizeof options};
  options.threads = (uint32_t)threads;
  options.map_weights = !strcmp(words[1], "mapped");
  const int32_t code = MODEL_(open)(words[0], &options, &model);
  if (code) fail(MODEL_(error)(code));
  for (int i = 0; i < ends->inputs; i++)
    if (MODEL_(input)(0, (uint32_t)i)->bytes != ends->input[i].bytes) fail("an input has another size");
  for (int i = 0; i < ends->outputs; i++)
    if (MODEL_(output)(0, (uint32_t)i)->bytes != ends->output[i].bytes) fail("an output has another size");
  for (int i = 0; i < ends->inputs; i++) inputs[i] = ends->input[i].data;
  for (int i = 0; i < ends->outputs; i++) outputs[i] = ends->output[i].data;
}

static void run_model(struct ends *ends) {
  (void)ends;
  const long before = allocations;
  const int32_t code = MODEL_(run)(model, 0, inputs, outputs);
  if (code) fail(MODEL_(error)(code));
  if (runs++) in_runs += allocations - before;
}

static void end_model(void) { printf("allocations %ld\nhandle_bytes %zu\n", in_runs, MODEL_(memory)(model)); }
