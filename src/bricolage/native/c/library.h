/* What all exported models have in common: handles, weights, instruction sets, runs. It depends on no model; the functions of one give
   it their tables. Before it stand model.h, program.h and tables.h. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "locks.h"

enum { ALIGNED = 64, LARGE_PAGE = 2 << 20 };

/* Of a file of weights. */
struct weights_header {
  char magic[8];
  uint32_t version, header_bytes;
  uint64_t bytes;
  uint8_t digest[32];
  uint8_t reserved[8];
};

struct model_handle {
  struct model_handle *next;
  const struct library *library;
  const struct set *set;
  const char *weights; /* behind their header */
  char *memory;        /* arena, scratch, tensors between regions, copies of tensors that lie badly */
  size_t memory_bytes;
  char *arena, *scratch, *between, *copies, **ends;
  void *kept;
  char *_Atomic *values;
  void *file; /* the whole file, mapped or copied; NULL where the caller has the weights */
  size_t file_bytes;
  void *team;
  uint32_t has_own_team, spins;
  _Atomic uint32_t users;
  library_lock turn;
};

/* --- open handles --- */

static library_lock handles_lock = UNLOCKED;
static struct model_handle *handles;
static void *own_team; /* of handles that were given none, and ask for as many threads as the first of them */
static uint32_t own_team_threads, own_team_places, own_team_users;

#if defined(__wasi__)
static void watch_forks(void) {}
#else
static void before_fork(void) { lock(&handles_lock); }
static void parent_after_fork(void) { unlock(&handles_lock); }
/* Other threads, which a fork leaves behind, may have been in the middle of a run. */
static void child_after_fork(void) {
  for (struct model_handle *each = handles; each; each = each->next) {
    make_lock(&each->turn);
    atomic_store(&each->users, 0);
  }
  make_lock(&handles_lock);
}
static void register_forks(void) { pthread_atfork(before_fork, parent_after_fork, child_after_fork); }
static void watch_forks(void) {
  static pthread_once_t registered = PTHREAD_ONCE_INIT;
  pthread_once(&registered, register_forks);
}
#endif

/* The link that leads to a handle; NULL where it is not open. Under the lock. */
static struct model_handle **link_to(const model_handle *handle) {
  for (struct model_handle **link = &handles; *link; link = &(*link)->next)
    if (*link == handle) return link;
  return NULL;
}

/* Whether the handle is open; it then stays so until it is left. */
static int enter(model_handle *handle) {
  lock(&handles_lock);
  const int open = link_to(handle) != NULL;
  if (open) atomic_fetch_add_explicit(&handle->users, 1, memory_order_relaxed);
  unlock(&handles_lock);
  return open;
}
static void leave(model_handle *handle) { atomic_fetch_sub_explicit(&handle->users, 1, memory_order_release); }

/* --- memory --- */

static size_t round_up(size_t bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

/* Room for copies of tensors that lie badly is as large as these can be, and hardly ever used. A system would refuse what is larger
   than its memory, such as the caches of a language model's longest texts. */
#if defined(MAP_NORESERVE)
enum { UNRESERVED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
#elif defined(__unix__)
enum { UNRESERVED = MAP_PRIVATE | MAP_ANONYMOUS };
#endif

/* Memory on large pages, where the system has them; NULL where there is not enough. A large page is what a page of entries of eight
   bytes describes: 2 MiB of pages of 4 KiB, 32 MiB of 16 KiB, 512 MiB of 64 KiB. */
static void *take_memory(size_t bytes) {
  if (!bytes) bytes = ALIGNED;
#if defined(__unix__)
  if (bytes >= LARGE_PAGE) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (bytes + page - 1) / page * page;
    const size_t large = page / 8 * page > bytes ? LARGE_PAGE : page / 8 * page;
    /* One large page more, so that it can begin at a multiple of one: what is in front and behind is given back. */
    char *all = mmap(NULL, used + large, PROT_READ | PROT_WRITE, UNRESERVED, -1, 0);
    if (all == MAP_FAILED) return NULL;
    const size_t front = (large - (uintptr_t)all % large) % large;
    char *start = all + front;
    if (front) munmap(all, front);
    if (large > front) munmap(start + used, large - front);
#if defined(MADV_HUGEPAGE)
    madvise(start, used, MADV_HUGEPAGE);
#endif
    return start;
  }
#endif
  void *memory = NULL;
  return posix_memalign(&memory, ALIGNED, bytes) ? NULL : memory;
}
static void give_back(void *memory, size_t bytes) {
  (void)bytes;
  if (!memory) return;
#if defined(__unix__)
  if (bytes >= LARGE_PAGE) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(memory, (bytes + page - 1) / page * page);
    return;
  }
#endif
  free(memory);
}

/* --- processors --- */

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
/* A bit of what CPUID answers: `where` is 0 to 3 for EAX to EDX. */
int LIBRARY(cpuid_bit)(uint32_t leaf, uint32_t subleaf, int where, int bit) {
  uint32_t answer[4];
  if (__get_cpuid_max(leaf & 0x80000000, NULL) < leaf) return 0;
  __cpuid_count(leaf, subleaf, answer[0], answer[1], answer[2], answer[3]);
  return answer[where] >> bit & 1;
}
/* Whether the system keeps these registers for a process. */
int LIBRARY(kept_registers)(uint32_t mask) {
  if (!LIBRARY(cpuid_bit)(1, 0, 2, 27)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask;
}
#if defined(__linux__)
#include <sys/syscall.h>
/* A process asks for the registers of a matrix unit before it may use them. */
int LIBRARY(tiles_granted)(void) { return !syscall(SYS_arch_prctl, 0x1023, 18); }
#else
int LIBRARY(tiles_granted)(void) { return 0; }
#endif
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
/* A bit of what the system says of the processor, in an emulator of the emulated one: 16 and 26 are AT_HWCAP and AT_HWCAP2. */
int LIBRARY(hwcap_bit)(unsigned long word, int bit) { return getauxval(word) >> bit & 1; }
#else
int LIBRARY(hwcap_bit)(unsigned long word, int bit) {
  (void)word, (void)bit;
  return 0;
}
#endif
#endif

/* --- texts and tables --- */

const char *LIBRARY(error)(int32_t code) {
  static const char *const texts[] = {
      "no error",
      "a pointer that must not be null is null",
      "the options are of another version of the header: set their size to sizeof",
      "the file of weights cannot be read",
      "the weights are shorter or longer than the library expects",
      "the weights belong to another build of this library",
      "there is not enough memory",
      "the processor lacks the instructions of every set in this library, or of the one that was asked for",
      "the library was not made for these sizes, or has no bucket of this number: see the buckets",
      "the handle is not open",
      "a run is under way, so that the handle was not closed",
      "an option has a value that it cannot have",
  };
  return code >= 0 && code < (int32_t)(sizeof texts / sizeof *texts) ? texts[code] : "an unknown code";
}

int32_t LIBRARY(find_bucket)(const struct library *library, const int64_t *sizes, uint32_t *bucket) {
  if (!bucket || (library->dimensions && !sizes)) return MODEL_NULL_ARGUMENT;
  for (uint32_t number = 0; number < library->buckets; number++) {
    uint32_t same = 0;
    while (same < library->dimensions && sizes[same] == library->sizes[number * library->dimensions + same]) same++;
    if (same < library->dimensions) continue;
    *bucket = number;
    return MODEL_OK;
  }
  return MODEL_NO_SUCH_SIZES;
}
const char *LIBRARY(instructions)(const model_handle *handle) { return handle ? handle->set->name : NULL; }
size_t LIBRARY(memory)(const model_handle *handle) { return handle ? handle->memory_bytes + handle->file_bytes : 0; }

/* --- opening and closing --- */

static const struct set *choose_set(const struct library *library, const char *name) {
  for (uint32_t number = 0; number < library->sets; number++)
    if ((!name || !strcmp(name, library->set[number].name)) && library->set[number].runs()) return library->set + number;
  return NULL;
}

/* Whether a block is the weights of a set, with their header. */
static int32_t check_weights(const struct set *set, const void *block, size_t bytes) {
  struct weights_header header;
  if (bytes < sizeof header) return MODEL_TRUNCATED;
  memcpy(&header, block, sizeof header);
  if (memcmp(header.magic, "BRICOLAG", 8) || header.version != MODEL_ABI_VERSION || header.header_bytes != sizeof header)
    return MODEL_OTHER_BUILD;
  if (memcmp(header.digest, set->digest, sizeof header.digest)) return MODEL_OTHER_BUILD;
  return header.bytes == set->weight_bytes && bytes == sizeof header + header.bytes ? MODEL_OK : MODEL_TRUNCATED;
}

/* Room for the largest bucket of a set. */
static int32_t take_room(model_handle *handle) {
  const struct library *library = handle->library;
  const struct set *set = handle->set;
  size_t arena = 0, scratch = 0, between = 0, copies = 0;
  for (uint32_t number = 0; number < library->buckets; number++) {
    const struct bucket *bucket = set->buckets + number;
    size_t staged = 0;
    for (uint32_t i = 0; i < library->inputs; i++) staged += round_up(bucket->inputs[i].bytes);
    for (uint32_t i = 0; i < library->outputs; i++) staged += round_up(bucket->outputs[i].bytes);
    copies = staged > copies ? staged : copies;
    between = bucket->between > between ? bucket->between : between;
    for (uint32_t i = 0; i < bucket->uses; i++) {
      const struct program *program = bucket->use[i].program;
      const size_t worked_in = program->own * program->threads + program->shared;
      arena = program->arena > arena ? program->arena : arena;
      scratch = worked_in > scratch ? worked_in : scratch;
    }
  }
  /* A vector may be read that begins in the last element. */
  arena = round_up(arena) + ALIGNED, scratch = round_up(scratch) + ALIGNED, between = round_up(between) + ALIGNED;
  handle->memory_bytes = arena + scratch + between + copies + (library->inputs + library->outputs) * sizeof(char *);
  handle->memory = take_memory(handle->memory_bytes);
  /* Of its own: a helper that is late in the last run may read it when the handle is closed. One word more, see `team_keep`. */
  handle->kept = calloc(library->most_values + 1, sizeof(char *));
  if (!handle->memory || !handle->kept) return MODEL_NO_MEMORY;
  handle->arena = handle->memory;
  handle->scratch = handle->arena + arena;
  handle->between = handle->scratch + scratch;
  handle->copies = handle->between + between;
  handle->ends = (char **)(handle->copies + copies);
  handle->values = (char *_Atomic *)handle->kept + 1;
  return MODEL_OK;
}

/* The threads of a handle: of another model, the library's own, or new ones. Under the lock. */
static int32_t take_team(model_handle *handle, const model_options *options) {
  const struct library *library = handle->library;
  const struct program *any = handle->set->buckets->use->program;
  if (options->team) {
    handle->team = options->team;
    any->team_hold(handle->team);
    return MODEL_OK;
  }
  uint32_t threads = 1;
  for (uint32_t number = 0; number < library->buckets; number++)
    for (uint32_t i = 0; i < handle->set->buckets[number].uses; i++) {
      const uint32_t wanted = handle->set->buckets[number].use[i].program->threads;
      threads = wanted > threads ? wanted : threads;
    }
  if (options->threads && options->threads < threads) threads = options->threads;
  if (own_team && threads == own_team_threads && own_team_places == !options->leave_helpers) {
    handle->team = own_team;
    any->team_hold(own_team);
  } else {
    handle->team = any->team_make(threads, !options->leave_helpers);
    if (!handle->team) return MODEL_NO_MEMORY;
    if (own_team) return MODEL_OK;
    own_team = handle->team;
    own_team_threads = threads;
    own_team_places = !options->leave_helpers;
  }
  handle->has_own_team = 1;
  own_team_users++;
  return MODEL_OK;
}

/* Under the lock. */
static void free_handle(model_handle *handle) {
  if (handle->has_own_team && !--own_team_users) own_team = NULL;
  const struct program *any = handle->set->buckets->use->program;
  if (handle->team) {
    if (handle->kept) any->team_keep(handle->team, handle->kept);
    any->team_release(handle->team);
  } else {
    free(handle->kept);
  }
  give_back(handle->memory, handle->memory_bytes);
  give_back(handle->file, handle->file_bytes);
  destroy_lock(&handle->turn);
  free(handle);
}

/* The caller's options, with those that its header did not have yet at their defaults. */
static int32_t read_options(const model_options *given, model_options *options) {
  memset(options, 0, sizeof *options);
  if (!given) return MODEL_OK;
  if (given->size < offsetof(model_options, instructions) + sizeof given->instructions || given->size > sizeof *options)
    return MODEL_OPTIONS_VERSION;
  memcpy(options, given, given->size);
  return options->map_weights > 1 || options->leave_helpers > 1 || options->sleeps > 1 ? MODEL_BAD_OPTION : MODEL_OK;
}

/* A handle of weights that are in memory: the caller's, or `file`, which it then owns, also where it fails. */
static int32_t open_block(const struct library *library, const struct set *set, const char *block, size_t bytes, void *file,
                          const model_options *options, model_handle **handle) {
  int32_t code = check_weights(set, block, bytes);
  model_handle *made = code ? NULL : calloc(1, sizeof *made);
  if (!made) {
    give_back(file, bytes);
    return code ? code : MODEL_NO_MEMORY;
  }
  made->library = library;
  made->set = set;
  made->weights = block + sizeof(struct weights_header);
  made->file = file;
  made->file_bytes = file ? bytes : 0;
  made->spins = !options->sleeps;
  make_lock(&made->turn);
  watch_forks();
  lock(&handles_lock);
  code = take_room(made);
  if (!code) code = take_team(made, options);
  if (code) {
    free_handle(made);
  } else {
    made->next = handles;
    handles = made;
    *handle = made;
  }
  unlock(&handles_lock);
  return code;
}

int32_t LIBRARY(open_memory)(const struct library *library, const void *weights, size_t bytes, const model_options *options,
                             model_handle **handle) {
  model_options chosen;
  if (!weights || !handle) return MODEL_NULL_ARGUMENT;
  const int32_t code = read_options(options, &chosen);
  if (code) return code;
  const struct set *set = choose_set(library, chosen.instructions);
  if (!set) return MODEL_NO_INSTRUCTIONS;
  if ((uintptr_t)weights % ALIGNED == 0) return open_block(library, set, weights, bytes, NULL, &chosen, handle);
  const int32_t fits = check_weights(set, weights, bytes);
  if (fits) return fits;
  char *copy = take_memory(bytes);
  if (!copy) return MODEL_NO_MEMORY;
  memcpy(copy, weights, bytes);
  return open_block(library, set, copy, bytes, copy, &chosen, handle);
}

/* Reads all of a file, or maps it; NULL where it cannot be. */
static char *read_file(const char *path, int map, size_t *bytes, int32_t *code) {
  *code = MODEL_NO_FILE;
#if defined(__unix__)
  struct stat facts;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  char *block = NULL;
  if (!fstat(file, &facts) && S_ISREG(facts.st_mode)) {
    *bytes = (size_t)facts.st_size;
    if (map && *bytes >= LARGE_PAGE) {
      block = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
      if (block == MAP_FAILED) block = NULL;
    } else if (!(block = take_memory(*bytes))) {
      *code = MODEL_NO_MEMORY;
    } else {
      size_t had = 0;
      while (had < *bytes) {
        const ssize_t more = read(file, block + had, *bytes - had);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) break;
        had += (size_t)more;
      }
      if (had < *bytes) {
        give_back(block, *bytes);
        block = NULL;
      }
    }
  }
  close(file);
  return block;
#else
  (void)map;
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *block = NULL;
  if (!fseek(file, 0, SEEK_END)) {
    const long length = ftell(file);
    rewind(file);
    *bytes = length > 0 ? (size_t)length : 0;
    block = take_memory(*bytes);
    if (!block) *code = MODEL_NO_MEMORY;
    if (block && fread(block, 1, *bytes, file) != *bytes) {
      give_back(block, *bytes);
      block = NULL;
    }
  }
  fclose(file);
  return block;
#endif
}

int32_t LIBRARY(open)(const struct library *library, const char *path, const model_options *options, model_handle **handle) {
  model_options chosen;
  if (!handle) return MODEL_NULL_ARGUMENT;
  int32_t code = read_options(options, &chosen);
  if (code) return code;
  const struct set *set = choose_set(library, chosen.instructions);
  if (!set) return MODEL_NO_INSTRUCTIONS;
  if (!path) {
    if (!set->embedded) return MODEL_NULL_ARGUMENT;
    return open_block(library, set, set->embedded, sizeof(struct weights_header) + set->weight_bytes, NULL, &chosen, handle);
  }
  size_t bytes = 0;
  char *block = read_file(path, chosen.map_weights, &bytes, &code);
  if (!block && code == MODEL_NO_FILE) { /* perhaps a folder */
    const size_t length = strlen(path), more = strlen(set->file);
    char *inside = malloc(length + more + 2);
    if (!inside) return MODEL_NO_MEMORY;
    memcpy(inside, path, length);
    inside[length] = '/';
    memcpy(inside + length + 1, set->file, more + 1);
    block = read_file(inside, chosen.map_weights, &bytes, &code);
    free(inside);
  }
  return block ? open_block(library, set, block, bytes, block, &chosen, handle) : code;
}

int32_t LIBRARY(close)(model_handle *handle) {
  if (!handle) return MODEL_NULL_ARGUMENT;
  int32_t code = MODEL_NOT_OPEN;
  lock(&handles_lock);
  struct model_handle **link = link_to(handle);
  if (link) {
    code = atomic_load_explicit(&handle->users, memory_order_acquire) ? MODEL_RUNNING : MODEL_OK;
    if (!code) {
      *link = handle->next;
      free_handle(handle);
    }
  }
  unlock(&handles_lock);
  return code;
}

/* --- runs --- */

/* Goes through the regions of a bucket. `ends` are its inputs and outputs. */
static void run_bucket(model_handle *handle, const struct bucket *bucket) {
  char *const *ends = handle->ends;
  for (uint32_t i = 0; i < bucket->uses; i++) {
    const struct use *use = bucket->use + i;
    for (uint32_t n = 0; n < use->count; n++) { /* a helper that is late in the run before may read them, and uses none */
      char *const end = use->values[n].between ? handle->between + use->values[n].at : ends[use->values[n].at];
      atomic_store_explicit(handle->values + n, end, memory_order_relaxed);
    }
    use->program->run(handle->team, (char **)handle->values, handle->arena, handle->weights + use->weights, handle->scratch,
                      handle->spins);
  }
}

/* An end that has bytes and is nowhere. */
static int lacks_end(const struct library *library, const struct bucket *bucket, const void *const *inputs,
                     void *const *outputs) {
  for (uint32_t i = 0; i < library->inputs; i++)
    if (!inputs[i] && bucket->inputs[i].bytes) return 1;
  for (uint32_t i = 0; i < library->outputs; i++)
    if (!outputs[i] && bucket->outputs[i].bytes) return 1;
  return 0;
}

int32_t LIBRARY(run)(const struct library *library, model_handle *handle, uint32_t number, const void *const *inputs,
                     void *const *outputs) {
  if (!handle || (library->inputs && !inputs) || (library->outputs && !outputs)) return MODEL_NULL_ARGUMENT;
  if (number >= library->buckets) return MODEL_NO_SUCH_SIZES;
  if (lacks_end(library, library->set->buckets + number, inputs, outputs)) return MODEL_NULL_ARGUMENT;
  if (!enter(handle)) return MODEL_NOT_OPEN;
  const struct bucket *bucket = handle->set->buckets + number;
  lock(&handle->turn);
  char *copy = handle->copies, **ends = handle->ends;
  for (uint32_t i = 0; i < library->inputs; i++) {
    ends[i] = (char *)inputs[i];
    if ((uintptr_t)ends[i] % ALIGNED) {
      memcpy(copy, ends[i], bucket->inputs[i].bytes);
      ends[i] = copy;
      copy += round_up(bucket->inputs[i].bytes);
    }
  }
  for (uint32_t i = 0; i < library->outputs; i++) {
    ends[library->inputs + i] = outputs[i];
    if ((uintptr_t)outputs[i] % ALIGNED) {
      ends[library->inputs + i] = copy;
      copy += round_up(bucket->outputs[i].bytes);
    }
  }
  run_bucket(handle, bucket);
  for (uint32_t i = 0; i < library->outputs; i++)
    if (ends[library->inputs + i] != outputs[i]) memcpy(outputs[i], ends[library->inputs + i], bucket->outputs[i].bytes);
  unlock(&handle->turn);
  leave(handle);
  return MODEL_OK;
}

/* --- threads --- */

model_team *LIBRARY(team_of)(model_handle *handle) {
  if (!handle || !enter(handle)) return NULL;
  model_team *team = handle->team;
  leave(handle);
  return team;
}
model_team *LIBRARY(team_make)(const struct library *library, uint32_t threads, uint32_t leave_helpers) {
  const struct set *set = choose_set(library, NULL);
  return threads && set ? set->buckets->use->program->team_make(threads, !leave_helpers) : NULL;
}
void LIBRARY(team_release)(const struct library *library, model_team *team) {
  const struct set *set = choose_set(library, NULL);
  if (team && set) set->buckets->use->program->team_release(team);
}
