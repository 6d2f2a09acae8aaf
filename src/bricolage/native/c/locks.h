/* Locks of the library; nothing where the system has no threads. */
#if defined(__wasi__)
typedef char library_lock;
#define UNLOCKED 0
static void make_lock(library_lock *each) { *each = UNLOCKED; }
static void destroy_lock(library_lock *each) { (void)each; }
static void lock(library_lock *each) { (void)each; }
static void unlock(library_lock *each) { (void)each; }
#else
#include <pthread.h>
typedef pthread_mutex_t library_lock;
#define UNLOCKED PTHREAD_MUTEX_INITIALIZER
static void make_lock(library_lock *each) { pthread_mutex_init(each, NULL); }
static void destroy_lock(library_lock *each) { pthread_mutex_destroy(each); }
static void lock(library_lock *each) { pthread_mutex_lock(each); }
static void unlock(library_lock *each) { pthread_mutex_unlock(each); }
#endif
