// SIGTERM, SIGHUP and SIGABRT without the interpreter: says that one came, and ends the process if
// nobody does so in time.
//
// A handler written in Python never runs while the main thread waits in C++, as in a collective.
// This one wakes a thread of Python's that waits at a semaphore, and starts a timer. The timer's
// own signal is the one that came: it ends the process also where C code keeps the interpreter's
// lock, so that no such thread can run. There is no descriptor in it: programs close those that are
// not theirs, and use their numbers again.
//
// A process aborts in the thread that asks for it, as NCCL's watchdog does when a collective times
// out. That thread waits in the handler until the recording is written, for as long at most, and
// then goes on to abort. One that holds the interpreter's lock does not wait: nothing could be
// written. Python's faulthandler, where it was there first, prints its stacks after that.

#include "vramlens.h"

#ifdef __linux__

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

struct Watched {
    int signal;
    timer_t timer;
};

Watched signals[] = {{SIGTERM, {}}, {SIGHUP, {}}};
sem_t wakes;
pid_t watched = 0;
itimerspec limit = {};
timespec deadline = {};
std::atomic<int> came{0};  // the first signal that came
std::atomic<bool> is_written{false};
int (*holds_interpreter)() = nullptr;  // CPython's PyGILState_Check
struct sigaction former_abort = {};    // what SIGABRT did before
std::atomic<long> passing_on{0};       // the first thread that has handed its abort on

void die(int number) {
    signal(number, SIG_DFL);
    kill(getpid(), number);  // blocked inside of the handler: delivered when it returns
}

bool is_over() {
    if (deadline.tv_sec == 0) return false;  // another thread is about to set it
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec != deadline.tv_sec ? now.tv_sec > deadline.tv_sec
                                         : now.tv_nsec >= deadline.tv_nsec;
}

void set_deadline() {
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += limit.it_value.tv_sec;
    deadline.tv_nsec += limit.it_value.tv_nsec;
    if (deadline.tv_nsec >= 1'000'000'000) {
        deadline.tv_sec += 1;
        deadline.tv_nsec -= 1'000'000'000;
    }
}

void start_timer(int number) {
    set_deadline();
    for (const Watched& entry : signals) {
        if (entry.signal == number) timer_settime(entry.timer, 0, &limit, nullptr);
    }
}

// Only what POSIX calls async-signal-safe.
void on_signal(int number) {
    const int saved = errno;
    int none = 0;
    if (getpid() != watched) {
        die(number);  // a forked child: the semaphore and the thread are its parent's
    } else if (came.compare_exchange_strong(none, number)) {
        start_timer(number);
        if (sem_post(&wakes) != 0) die(number);
    } else if (is_over()) {
        die(number);
    }  // else a second one while the recording is being written
    errno = saved;
}

void wait_until_written() {
    const timespec pause = {0, 10'000'000};
    while (!is_written && !is_over()) nanosleep(&pause, nullptr);
}

// Another thread is ending the process: not for ever, where nobody set a deadline.
void wait_until_over() {
    const timespec pause = {0, 10'000'000};
    for (int pauses = 0; pauses < 2'000 && !is_over(); ++pauses) nanosleep(&pause, nullptr);
}

// Python's faulthandler has one handler for all signals that end a process by a fault.
bool is_of_faulthandler(const struct sigaction& action) {
    struct sigaction of_faults = {};
    if (sigaction(SIGFPE, nullptr, &of_faults) != 0) return false;
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
           action.sa_handler == of_faults.sa_handler;
}

// One thread of the process hands its abort on to what was there before, once: faulthandler may
// hand it back to this thread, and must not be put back while it ends the process.
void pass_on(int number, long thread) {
    long first = 0;
    if (passing_on.compare_exchange_strong(first, thread) && is_of_faulthandler(former_abort)) {
        sigaction(number, &former_abort, nullptr);
    } else {
        if (first != 0 && first != thread) wait_until_over();
        signal(number, SIG_DFL);
    }
    raise(number);  // to this thread, blocked inside of the handler: delivered when it returns
}

// Only what POSIX calls async-signal-safe, and a question that reads a variable of this thread's.
void on_abort(int number) {
    const int saved = errno;
    const long thread = syscall(SYS_gettid);
    int none = 0;
    const bool is_watched = getpid() == watched && !holds_interpreter() && passing_on != thread;
    if (is_watched && came.compare_exchange_strong(none, number)) {
        set_deadline();
        if (sem_post(&wakes) == 0) wait_until_written();
        pass_on(number, thread);
    } else if (is_watched) {
        wait_until_over();  // another thread's abort, or SIGTERM, ends the process before that
        signal(number, SIG_DFL);
        raise(number);
    } else {
        pass_on(number, thread);
    }
    errno = saved;
}

bool has_default(int number) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0) return false;
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

bool is_ours(int number) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0)
        return false;
    return action.sa_handler == (number == SIGABRT ? on_abort : on_signal);
}

bool handle(int number, void (*handler)(int)) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(number, &action, nullptr) == 0;
}

bool watch_abort(bool may_be_faulthandlers) {
    if (sigaction(SIGABRT, nullptr, &former_abort) != 0) return false;
    const bool is_free = has_default(SIGABRT);
    if (!is_free && !(may_be_faulthandlers && is_of_faulthandler(former_abort))) return false;
    return handle(SIGABRT, on_abort);
}

bool watch(Watched& entry) {
    if (!has_default(entry.signal)) return false;
    struct sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = entry.signal;
    if (timer_create(CLOCK_MONOTONIC, &event, &entry.timer) != 0) return false;
    return handle(entry.signal, on_signal);
}

}  // namespace

int32_t vl_termination_watch(int64_t limit_ms, int (*holds_lock)(void), int32_t has_faulthandler) {
    if (watched == getpid() || sem_init(&wakes, 0, 0) != 0) return 0;
    limit.it_value.tv_sec = static_cast<time_t>(limit_ms / 1000);
    limit.it_value.tv_nsec = static_cast<long>(limit_ms % 1000) * 1'000'000;
    watched = getpid();
    came = 0;
    passing_on = 0;
    is_written = false;
    holds_interpreter = holds_lock;
    bool any = watch_abort(has_faulthandler != 0);
    for (Watched& entry : signals) {
        if (watch(entry)) any = true;
    }
    if (!any) watched = 0;
    return any;
}

int32_t vl_termination_wait(void) {
    do {
        while (sem_wait(&wakes) != 0 && errno == EINTR) {
        }
    } while (came == 0);
    return came;
}

int32_t vl_termination_leave(void) {
    if (watched == getpid() && came != 0)
        return came;  // a second one must not end what the first one began
    for (const Watched& entry : signals) {
        if (is_ours(entry.signal)) signal(entry.signal, SIG_DFL);
    }
    if (is_ours(SIGABRT)) sigaction(SIGABRT, &former_abort, nullptr);
    watched = 0;  // a handler that the program set since may call ours
    return 0;
}

void vl_termination_die(int32_t number) {
    if (number == SIGABRT) {
        is_written = true;
    } else {
        die(number);
    }
}

#else

int32_t vl_termination_watch(int64_t, int (*)(void), int32_t) {
    return 0;
}
int32_t vl_termination_wait(void) {
    return 0;
}
int32_t vl_termination_leave(void) {
    return 0;
}
void vl_termination_die(int32_t) {}

#endif
