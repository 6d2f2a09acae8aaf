/* What every contestant of benchmarks.exported does: it opens a model, answers once, and runs when it is told to.
   Words: FOLDER THREADS MODEL..., where FOLDER holds ends.txt, inputs.bin and, afterwards, outputs.bin. Standard output gets the
   clock (CLOCK_MONOTONIC, ns) when the model was open and when the first answer was there, then a line for each turn. A number on
   standard input is a turn of so many runs; its end is the program's. */
#ifndef TURNS_H
#define TURNS_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ENDS = 32, MOST_RANK = 8 };

struct end {
  char side[8], name[256];
  int type, rank;
  int64_t shape[MOST_RANK];
  size_t bytes;
  char *data; /* begins at a multiple of 64 */
};

struct ends {
  int inputs, outputs;
  struct end input[MOST_ENDS], output[MOST_ENDS];
};

/* Each contestant's own. */
static void open_model(struct ends *ends, int threads, char **words);
static void run_model(struct ends *ends);
static void end_model(void); /* says on standard output, in words and numbers, what else there is to say */

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static long long read_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static FILE *open_file(const char *folder, const char *name, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, mode);
  if (!file) fail(path);
  return file;
}

static void read_ends(struct ends *ends, const char *folder) {
  FILE *table = open_file(folder, "ends.txt", "r"), *values = open_file(folder, "inputs.bin", "rb");
  struct end end;
  while (fscanf(table, "%7s %255s %d %zu %d", end.side, end.name, &end.type, &end.bytes, &end.rank) == 5) {
    for (int i = 0; i < end.rank; i++)
      if (fscanf(table, "%ld", &end.shape[i]) != 1) fail("ends.txt is wrong");
    end.data = aligned_alloc(64, (end.bytes + 127) / 64 * 64);
    const int given = !strcmp(end.side, "input");
    if (given && fread(end.data, 1, end.bytes, values) != end.bytes) fail("inputs.bin is too short");
    if (given)
      ends->input[ends->inputs++] = end;
    else
      ends->output[ends->outputs++] = end;
  }
  fclose(table);
  fclose(values);
}

static void print_resident(void) {
  char line[256];
  FILE *file = fopen("/proc/self/status", "r");
  if (!file) fail("/proc/self/status cannot be read");
  while (fgets(line, sizeof line, file))
    if (!strncmp(line, "VmRSS:", 6)) printf("resident_kb %ld\n", atol(line + 6));
  fclose(file);
}

int main(int count, char **words) {
  if (count < 4) fail("FOLDER THREADS MODEL...");
  static struct ends ends;
  read_ends(&ends, words[1]);
  open_model(&ends, atoi(words[2]), words + 3);
  printf("opened %lld\n", read_clock());
  run_model(&ends);
  printf("answered %lld\n", read_clock());
  FILE *answers = open_file(words[1], "outputs.bin", "wb");
  for (int i = 0; i < ends.outputs; i++) fwrite(ends.output[i].data, 1, ends.output[i].bytes, answers);
  fclose(answers);
  fflush(stdout);
  int runs;
  while (scanf("%d", &runs) == 1) {
    const long long begun = read_clock();
    for (int i = 0; i < runs; i++) run_model(&ends);
    printf("turn %lld\n", (read_clock() - begun) / runs);
    fflush(stdout);
  }
  print_resident();
  end_model();
  return 0;
}
#endif
