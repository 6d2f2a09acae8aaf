/* Nearest neighbours of sentences, without Python: neighbours FOLDER_OF_WEIGHTS TOKENS THREADS
   TOKENS holds two 64-bit numbers, sentences and tokens of each, then all token numbers and the mask, row by row. */
#include <minilm.h>
#include <stdio.h>
#include <stdlib.h>

static int give_up(const char *what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

int main(int count, char **words) {
  if (count != 4) return give_up("neighbours FOLDER_OF_WEIGHTS TOKENS THREADS");
  int64_t sizes[2]; /* in the order of minilm_dimension_name: batch, sequence */
  FILE *file = fopen(words[2], "rb");
  if (!file || fread(sizes, sizeof sizes, 1, file) != 1) return give_up("there are no tokens");

  minilm_options options = {sizeof options};
  options.threads = (uint32_t)atoi(words[3]);
  minilm_handle *model;
  int32_t code = minilm_open(words[1], &options, &model);
  if (code) return give_up(minilm_error(code));
  uint32_t bucket;
  code = minilm_find_bucket(sizes, &bucket);
  if (code) return give_up(minilm_error(code));

  const void *inputs[2];
  for (uint32_t i = 0; i < 2; i++) {
    const size_t bytes = minilm_input(bucket, i)->bytes;
    void *tokens = malloc(bytes);
    if (fread(tokens, 1, bytes, file) != bytes) return give_up("there are too few tokens");
    inputs[i] = tokens;
  }
  fclose(file);
  const minilm_tensor *result = minilm_output(bucket, 0);
  float *embeddings = malloc(result->bytes);
  void *outputs[] = {embeddings};
  code = minilm_run(model, bucket, inputs, outputs);
  if (code) return give_up(minilm_error(code));

  /* Embeddings have length 1, so that the product of two is the cosine of their angle. */
  const int64_t sentences = result->shape[0], width = result->shape[1];
  for (int64_t i = 0; i < sentences; i++) {
    int64_t nearest = -1;
    double best = -2;
    for (int64_t j = 0; j < sentences; j++) {
      double cosine = 0;
      for (int64_t k = 0; k < width; k++) cosine += (double)embeddings[i * width + k] * embeddings[j * width + k];
      if (j != i && cosine > best) best = cosine, nearest = j;
    }
    printf("%ld\n", (long)nearest);
  }
  minilm_close(model);
  return 0;
}
