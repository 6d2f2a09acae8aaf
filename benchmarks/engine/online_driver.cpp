// A native program's phases as a Taskflow graph: each piece of a phase is a task, behind the phases that it depends on.
#include <taskflow/taskflow.hpp>

#include <memory>
#include <vector>

// One piece of a phase, on its program's memory.
using piece = void (*)(long phase, long number, char **io, char *arena, const char *weights, char *own, char *shared);

struct memory {
  char **io;
  char *arena;
  const char *weights;
  char *own;  // of each worker, so many bytes
  size_t own_bytes;
  char *shared;  // of each phase, from its offset on
};

struct program {
  program(long workers) : executor(static_cast<size_t>(workers)) {}
  tf::Executor executor;
  tf::Taskflow flow;
  memory with{};
};

extern "C" {

// Phase n has pieces[n] pieces in tasks[n] tasks, follows the phases before[first[n]] to before[first[n + 1] - 1], and has its shared
// memory at offset[n].
void *online_make(long workers, piece run, long phases, const long *pieces, const long *tasks, const long *first,
                  const long *before, const long *offset) {
  auto made = std::make_unique<program>(workers);
  std::vector<tf::Task> ends;
  for (long n = 0; n < phases; n++) {
    std::vector<tf::Task> parts;
    for (long t = 0; t < tasks[n]; t++) {
      const long begin = pieces[n] * t / tasks[n], end = pieces[n] * (t + 1) / tasks[n], at = offset[n];
      program *own = made.get();
      parts.push_back(made->flow.emplace([own, run, n, begin, end, at] {
        const memory &m = own->with;
        char *scratch = m.own + m.own_bytes * static_cast<size_t>(own->executor.this_worker_id());
        for (long p = begin; p < end; p++) run(n, p, m.io, m.arena, m.weights, scratch, m.shared + at);
      }));
      for (long e = first[n]; e < first[n + 1]; e++) ends[static_cast<size_t>(before[e])].precede(parts.back());
    }
    if (parts.size() == 1) {
      ends.push_back(parts[0]);
      continue;
    }
    ends.push_back(made->flow.emplace([] {}));
    for (tf::Task &part : parts) part.precede(ends.back());
  }
  return made.release();
}

void online_run(void *given, char **io, char *arena, const char *weights, char *own, size_t own_bytes, char *shared) {
  auto *it = static_cast<program *>(given);
  it->with = {io, arena, weights, own, own_bytes, shared};
  it->executor.run(it->flow).wait();
}

void online_free(void *given) { delete static_cast<program *>(given); }
}
