/* Runs a library of native/c/model.h on what another process sends: runner LIBRARY NAME WEIGHTS. NAME begins the names of its
   functions. It answers a code and a text: the set of instructions, or why the library does not open. Then it reads the number of a
   bucket, whether to flush subnormals, and the bytes of inputs, again and again, and answers a code and the bytes of the outputs. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model.h"

enum { ALIGNED = 64, NAME_BYTES = 256, FLUSHES = 1 << 24 };

static void *library;
static const char *name;

static void *find(const char *function) {
  char whole[NAME_BYTES];
  snprintf(whole, sizeof whole, "%s_%s", name, function);
  void *address = dlsym(library, whole);
  if (!address) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  return address;
}

static int take(void *data, size_t bytes) {
  for (char *at = data; bytes;) {
    const ssize_t more = read(0, at, bytes);
    if (more <= 0) return 0;
    at += more, bytes -= (size_t)more;
  }
  return 1;
}

static void give(const void *data, size_t bytes) {
  for (const char *at = data; bytes;) {
    const ssize_t more = write(3, at, bytes);
    if (more <= 0) exit(2);
    at += more, bytes -= (size_t)more;
  }
}

static void answer(int32_t code, const char *text) {
  const uint32_t bytes = (uint32_t)strlen(text);
  give(&code, sizeof code);
  give(&bytes, sizeof bytes);
  give(text, bytes);
}

static void *allocate(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, ALIGNED, bytes + ALIGNED)) exit(2);
  return memory;
}

int main(int count, char **words) {
  if (count != 4) return 2;
  name = words[2];
  library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    answer(-1, dlerror());
    return 1;
  }
  int32_t (*open)(const char *, const model_options *, model_handle **) = find("open");
  int32_t (*run)(model_handle *, uint32_t, const void *const *, void *const *) = find("run");
  const model_tensor *(*input)(uint32_t, uint32_t) = find("input"), *(*output)(uint32_t, uint32_t) = find("output");
  const uint32_t inputs = ((uint32_t(*)(void))find("inputs"))(), outputs = ((uint32_t(*)(void))find("outputs"))();
  model_handle *model = NULL;
  const int32_t opened = open(words[3], NULL, &model);
  if (opened) {
    answer(opened, ((const char *(*)(int32_t))find("error"))(opened));
    return 1;
  }
  answer(0, ((const char *(*)(const model_handle *))find("instructions"))(model));
  const void **reads = calloc(inputs + 1, sizeof *reads);
  void **writes = calloc(outputs + 1, sizeof *writes);
  for (uint32_t asked[2]; take(asked, sizeof asked);) {
    const uint32_t bucket = asked[0];
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)(asked[1] ? FLUSHES : 0)));
    for (uint32_t i = 0; i < inputs; i++) {
      void *memory = allocate(input(bucket, i)->bytes);
      if (!take(memory, input(bucket, i)->bytes)) return 2;
      reads[i] = memory;
    }
    for (uint32_t i = 0; i < outputs; i++) {
      writes[i] = allocate(output(bucket, i)->bytes);
      memset(writes[i], 0x5a, output(bucket, i)->bytes);
    }
    const int32_t code = run(model, bucket, reads, writes);
    give(&code, sizeof code);
    for (uint32_t i = 0; !code && i < outputs; i++) give(writes[i], output(bucket, i)->bytes);
    for (uint32_t i = 0; i < inputs; i++) free((void *)reads[i]);
    for (uint32_t i = 0; i < outputs; i++) free(writes[i]);
  }
  return ((int32_t(*)(model_handle *))find("close"))(model) ? 2 : 0;
}
