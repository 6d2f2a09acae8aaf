/* Preloaded into a process and all that it starts: the processor answers CPUID as a smaller one (see processor.py).
 *
 * Linux lets the instruction CPUID fault (arch_prctl(ARCH_SET_CPUID, 0)): threads and forked processes inherit that, execve ends
 * it. The handler of the fault asks the real processor, clears what is to be hidden, and goes on behind the instruction, as rr does.
 *
 *     BRICOLAGE_PROCESSOR         the smaller one's name, which /proc/cpuinfo adds to the model's
 *     BRICOLAGE_PROCESSOR_CPUID   what is hidden: LEAF.SUBLEAF.REGISTER=MASK in hexadecimal, separated by commas; * is any sub-leaf
 *     BRICOLAGE_PROCESSOR_FLAGS   the same as /proc/cpuinfo names it, separated by spaces
 *
 * Handlers of SIGSEGV that the process installs are kept here and called for all other faults. A system call that a library makes
 * by itself (rt_sigaction, openat) passes this by.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* which gives `open` another body */
#include <asm/prctl.h>
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { GENERAL_PROTECTION = 13, MOST = 64, CANNOT_MASK = 70 };
static struct { unsigned leaf, subleaf, reg, mask; int any; } hidden[MOST];
static int hidden_count;
static const char UNKNOWN_FORM[] = "BRICOLAGE_PROCESSOR_CPUID has no form that is known";
static const char *hidden_flags = "", *processor = "";
static struct sigaction theirs; /* of SIGSEGV; the process believes that it is installed */
static int theirs_lock;

typedef int sigaction_function(int, const struct sigaction *, struct sigaction *);
typedef int mask_function(int, const sigset_t *, sigset_t *);
/* The C library's own. Found before anything else runs: dlsym is neither for handlers nor for the insides of a sanitizer. */
static sigaction_function *real_sigaction;
static mask_function *real_sigprocmask, *real_pthread_sigmask;
static int (*real_open)(const char *, int, ...), (*real_openat)(int, const char *, int, ...);
static int (*real_open_2)(const char *, int);
static FILE *(*real_fopen)(const char *, const char *);

/* No errno: the handler may come anywhere. */
static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void find(void) {
    real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    real_sigprocmask = dlsym(RTLD_NEXT, "sigprocmask");
    real_pthread_sigmask = dlsym(RTLD_NEXT, "pthread_sigmask");
    real_open = dlsym(RTLD_NEXT, "open64"); /* on this architecture files are large by either name */
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_open_2 = dlsym(RTLD_NEXT, "__open64_2");
    real_fopen = dlsym(RTLD_NEXT, "fopen64");
}

#define FOUND(real) ({ \
    if (!real) find(); \
    real; \
})

static int answered(ucontext_t *context) {
    greg_t *r = context->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)r[REG_RIP];
    if (r[REG_TRAPNO] != GENERAL_PROTECTION || at[0] != 0x0f || at[1] != 0xa2) return 0;
    unsigned leaf = r[REG_RAX], subleaf = r[REG_RCX], v[4];
    raw(SYS_arch_prctl, ARCH_SET_CPUID, 1, 0); /* of this thread alone */
    __cpuid_count(leaf, subleaf, v[0], v[1], v[2], v[3]);
    raw(SYS_arch_prctl, ARCH_SET_CPUID, 0, 0);
    for (int i = 0; i < hidden_count; i++)
        if (hidden[i].leaf == leaf && (hidden[i].any || hidden[i].subleaf == subleaf)) v[hidden[i].reg] &= ~hidden[i].mask;
    r[REG_RAX] = v[0], r[REG_RBX] = v[1], r[REG_RCX] = v[2], r[REG_RDX] = v[3];
    r[REG_RIP] += 2;
    return 1;
}

static struct sigaction swapped(const struct sigaction *by) {
    while (__atomic_exchange_n(&theirs_lock, 1, __ATOMIC_ACQUIRE)) raw(SYS_sched_yield, 0, 0, 0);
    struct sigaction before = theirs;
    if (by) theirs = *by;
    __atomic_store_n(&theirs_lock, 0, __ATOMIC_RELEASE);
    return before;
}

static void die(int signal) {
    struct sigaction by_default = {.sa_handler = SIG_DFL};
    sigset_t only;
    real_sigaction(signal, &by_default, NULL);
    sigemptyset(&only), sigaddset(&only, signal);
    raw(SYS_tgkill, raw(SYS_getpid, 0, 0, 0), raw(SYS_gettid, 0, 0, 0), signal);
    real_pthread_sigmask(SIG_UNBLOCK, &only, NULL);
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    if (answered(context)) return;
    struct sigaction chosen = swapped(NULL);
    if (!(chosen.sa_flags & SA_SIGINFO) && chosen.sa_handler == SIG_IGN && info->si_code <= 0) return; /* sent, not a fault */
    if (!(chosen.sa_flags & SA_SIGINFO) && (chosen.sa_handler == SIG_DFL || chosen.sa_handler == SIG_IGN)) {
        die(signal);
        return;
    }
    if (chosen.sa_flags & SA_RESETHAND) {
        struct sigaction by_default = {.sa_handler = SIG_DFL};
        swapped(&by_default);
    }
    sigset_t blocked;
    sigorset(&blocked, &((ucontext_t *)context)->uc_sigmask, &chosen.sa_mask);
    real_pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    if (chosen.sa_flags & SA_SIGINFO) chosen.sa_sigaction(signal, info, context);
    else chosen.sa_handler(signal);
}

/* On the stack that the process' own handler asked for. Other signals wait meanwhile: their handlers would see the real CPUID. */
static int install(int flags) {
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | (flags & SA_ONSTACK)};
    sigfillset(&ours.sa_mask);
    sigdelset(&ours.sa_mask, SIGSEGV);
    return real_sigaction(SIGSEGV, &ours, NULL);
}

/* Sanitizers put functions of their own before the C library's, which are not ready when `start` runs. */
static size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

static unsigned hexadecimal(const char **at) {
    unsigned number = 0;
    for (;; ++*at)
        if (**at >= '0' && **at <= '9') number = number * 16 + (**at - '0');
        else if (**at >= 'a' && **at <= 'f') number = number * 16 + (**at - 'a' + 10);
        else return number;
}

static void refuse(const char *why) {
    static const char begin[] = "benchmarks/processor.c: this process cannot be masked: ";
    raw(SYS_write, 2, (long)begin, sizeof begin - 1);
    raw(SYS_write, 2, (long)why, length_of(why));
    raw(SYS_write, 2, (long)"\n", 1);
    raw(SYS_exit_group, CANNOT_MASK, 0, 0);
}

static void parse(const char *at) {
    for (; *at; at += *at == ',') {
        if (hidden_count == MOST) refuse("too much is to be hidden");
        hidden[hidden_count].leaf = hexadecimal(&at);
        if (*at++ != '.') refuse(UNKNOWN_FORM);
        if (*at == '*') hidden[hidden_count].any = 1, at++;
        else hidden[hidden_count].subleaf = hexadecimal(&at);
        if (at[0] != '.' || at[1] < 'a' || at[1] > 'd' || at[2] != '=') refuse(UNKNOWN_FORM);
        hidden[hidden_count].reg = at[1] - 'a';
        at += 3;
        hidden[hidden_count++].mask = hexadecimal(&at);
        if (*at && *at != ',') refuse(UNKNOWN_FORM);
    }
}

static const char *variable(char **environment, const char *name) {
    for (; environment && *environment; environment++) {
        const char *at = *environment, *wanted = name;
        while (*wanted && *at == *wanted) at++, wanted++;
        if (!*wanted && *at == '=') return at + 1;
    }
    return NULL;
}

/* Linked to be the first of all (-z initfirst): others ask CPUID in theirs. The C library is not set up yet, so `environ` is not. */
__attribute__((constructor)) static void start(int count, char **arguments, char **environment) {
    const char *what = variable(environment, "BRICOLAGE_PROCESSOR_CPUID"), *flags = variable(environment, "BRICOLAGE_PROCESSOR_FLAGS");
    const char *name = variable(environment, "BRICOLAGE_PROCESSOR");
    sigset_t only;
    (void)count, (void)arguments;
    find();
    if (!what) return;
    if (flags) hidden_flags = flags;
    if (name) processor = name;
    parse(what);
    real_sigaction(SIGSEGV, NULL, &theirs);
    if (install(0)) refuse("sigaction failed");
    sigemptyset(&only), sigaddset(&only, SIGSEGV);
    real_pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    if (raw(SYS_arch_prctl, ARCH_SET_CPUID, 0, 0)) refuse("the system does not let CPUID fault (arch_prctl(ARCH_SET_CPUID) failed)");
}

/* --- Signals. A fault that is blocked ends the process, so SIGSEGV never is. --- */

int sigaction(int signal, const struct sigaction *action, struct sigaction *before) {
    struct sigaction wanted;
    if (action) {
        wanted = *action;
        if (signal != SIGSEGV) sigdelset(&wanted.sa_mask, SIGSEGV);
    }
    if (signal != SIGSEGV || !hidden_count) return FOUND(real_sigaction)(signal, action ? &wanted : NULL, before);
    struct sigaction old = swapped(action ? &wanted : NULL);
    if (before) *before = old;
    return action ? install(wanted.sa_flags) : 0;
}

int __sigaction(int signal, const struct sigaction *action, struct sigaction *before) { return sigaction(signal, action, before); }

static sighandler_t handler_set(int signal, sighandler_t handler, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, before;
    return sigaction(signal, &action, &before) ? SIG_ERR : before.sa_handler;
}

sighandler_t signal(int number, sighandler_t handler) { return handler_set(number, handler, SA_RESTART); }
sighandler_t bsd_signal(int number, sighandler_t handler) { return handler_set(number, handler, SA_RESTART); }
sighandler_t ssignal(int number, sighandler_t handler) { return handler_set(number, handler, SA_RESTART); }
sighandler_t sysv_signal(int number, sighandler_t handler) { return handler_set(number, handler, SA_RESETHAND | SA_NODEFER); }
sighandler_t __sysv_signal(int number, sighandler_t handler) { return handler_set(number, handler, SA_RESETHAND | SA_NODEFER); }

static int masked(mask_function *real, int how, const sigset_t *set, sigset_t *before) {
    sigset_t allowed;
    if (set && how != SIG_UNBLOCK) {
        allowed = *set;
        sigdelset(&allowed, SIGSEGV);
        set = &allowed;
    }
    return real(how, set, before);
}

int sigprocmask(int how, const sigset_t *set, sigset_t *before) { return masked(FOUND(real_sigprocmask), how, set, before); }
int pthread_sigmask(int how, const sigset_t *set, sigset_t *before) { return masked(FOUND(real_pthread_sigmask), how, set, before); }

/* --- What Linux tells of the processor: the same without the flags that are hidden. --- */

static int is_hidden(const char *word, size_t length) {
    for (const char *at = hidden_flags; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && !strncmp(at, word, length)) return length > 0;
    return 0;
}

static void write_without_hidden(int to, const char *line, size_t length) {
    const char *end = line + length, *at = memchr(line, ':', length);
    if (!strncmp(line, "model name", 10)) {
        dprintf(to, "%.*s as %s\n", (int)length - 1, line, processor);
        return;
    }
    if (!at || strncmp(line, "flags", 5)) at = end;
    else at++;
    if (write(to, line, at - line) < 0) return;
    while (at < end) {
        const char *stop = at + 1;
        while (stop < end && *stop != ' ' && *stop != '\n') stop++;
        if (!is_hidden(at + 1, stop - at - 1) && write(to, at, stop - at) < 0) return;
        at = stop;
    }
}

static int is_processor(const char *path) { return hidden_count && path && !strcmp(path, "/proc/cpuinfo"); }

/* A file in memory, at its beginning. */
static int processor_told(int flags) {
    int from = raw(SYS_open, (long)"/proc/cpuinfo", O_RDONLY | O_CLOEXEC, 0);
    if (from < 0) {
        errno = -from;
        return -1;
    }
    int to = memfd_create("cpuinfo", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    char *text = NULL, *larger;
    size_t size = 0;
    ssize_t got = 1;
    while (got > 0 && (larger = realloc(text, size + 65536))) {
        text = larger;
        size += (got = read(from, text + size, 65536)) > 0 ? got : 0;
    }
    for (size_t at = 0; at < size;) {
        char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) + 1 - at : size - at;
        write_without_hidden(to, text + at, length);
        at += length;
    }
    free(text);
    close(from);
    lseek(to, 0, SEEK_SET);
    return to;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags) \
        return is_processor(path) ? processor_told(flags) : FOUND(real_open)(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        MODE(flags) \
        return is_processor(path) ? processor_told(flags) \
                                  : FOUND(real_openat)(folder, path, flags, mode); \
    }
#define OPEN_2(name) \
    int name(const char *path, int flags) { \
        return is_processor(path) ? processor_told(flags) : FOUND(real_open_2)(path, flags); \
    }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        return is_processor(path) ? fdopen(processor_told(0), "r") : FOUND(real_fopen)(path, mode); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
FOPEN(fopen)
FOPEN(fopen64)
