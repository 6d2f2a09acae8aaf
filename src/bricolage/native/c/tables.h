/* What the tables of a library are made of. Before it stand model.h and program.h. */
/* A tensor at an end of a region: an end of the model, by its number among inputs and outputs, or bytes behind the start of what
   lies between regions. */
struct value {
  uint32_t between;
  uint64_t at;
};

/* A region of a bucket, with the ends that it reads and writes in its order. */
struct use {
  const struct program *program;
  uint64_t weights; /* bytes from the start of all weights */
  uint32_t count;
  const struct value *values;
};

struct bucket {
  const model_tensor *inputs, *outputs;
  uint32_t uses;
  const struct use *use;
  uint64_t between; /* bytes of the tensors between its regions */
};

/* The library for one set of instructions. */
struct set {
  const char *name, *file; /* the file of its weights, in their folder */
  int (*runs)(void);       /* whether the processor has it */
  uint64_t weight_bytes;
  uint8_t digest[32];
  const char *embedded; /* the weights, with their header; NULL where they are in a file */
  const struct bucket *buckets;
};

/* What a model gives to the functions that all models share. */
struct library {
  uint32_t sets, buckets, dimensions, inputs, outputs, most_values; /* values: the ends of a region, at most */
  const struct set *set;
  const int64_t *sizes; /* of the dimensions, bucket after bucket */
  const char *const *names;
};

/* Names of shared functions. Several models in one program each have their own, under their own names. */
#ifndef LIBRARY
#define LIBRARY(name) model_shared_##name
#endif
#if defined(__x86_64__) || defined(__i386__)
int LIBRARY(cpuid_bit)(uint32_t leaf, uint32_t subleaf, int where, int bit);
int LIBRARY(kept_registers)(uint32_t mask);
int LIBRARY(tiles_granted)(void);
#elif defined(__aarch64__)
int LIBRARY(hwcap_bit)(unsigned long word, int bit);
#endif
const char *LIBRARY(error)(int32_t code);
int32_t LIBRARY(find_bucket)(const struct library *library, const int64_t *sizes, uint32_t *bucket);
const char *LIBRARY(instructions)(const model_handle *handle);
size_t LIBRARY(memory)(const model_handle *handle);
int32_t LIBRARY(open)(const struct library *library, const char *path, const model_options *options, model_handle **handle);
int32_t LIBRARY(open_memory)(const struct library *library, const void *weights, size_t bytes, const model_options *options,
                             model_handle **handle);
int32_t LIBRARY(close)(model_handle *handle);
int32_t LIBRARY(run)(const struct library *library, model_handle *handle, uint32_t number, const void *const *inputs,
                     void *const *outputs);
model_team *LIBRARY(team_of)(model_handle *handle);
model_team *LIBRARY(team_make)(const struct library *library, uint32_t threads, uint32_t leave_helpers);
void LIBRARY(team_release)(const struct library *library, model_team *team);
