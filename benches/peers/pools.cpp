// What C++ programs take their buffers from: one pair of "acquire" and "recycle", in the three shapes of bench_memory.py.
//
//   int run(kind, shape, pairs)   0: done, -1: this kind was not compiled in (its header is absent)
//   int line_there_and_back(trips)
//
// kinds: 0 malloc(32768), one line written, free | 1 std::mutex + std::vector | 2 boost::lockfree::stack
//        3 moodycamel::ConcurrentQueue with tokens | 4 an array of each thread's over a lock-free list, by hand
// shapes: 0 one thread | 1 two threads on one pool, half of the pairs each | 2 one thread acquires, the other recycles,
//         through a ring of 256 places (the same as ours has)
//
// A pool holds 1024 numbers, as the free list of a pool of 1024 segments does.  None of them has limits, reference counts
// or statistics.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#if __has_include(<boost/lockfree/stack.hpp>)
#include <boost/lockfree/stack.hpp>
#define HAS_BOOST 1
#endif
#if __has_include(<concurrentqueue/concurrentqueue.h>)
#include <concurrentqueue/concurrentqueue.h>
#define HAS_MOODYCAMEL 1
#endif

namespace {

constexpr uint64_t SEGMENTS = 1024;
constexpr size_t SIZE = 32768;

// A pool is anything with a per-thread User that has `bool take(uint64_t &)` and `void give(uint64_t)`.

struct Malloc {
    struct User {
        explicit User(Malloc &) {}
        bool take(uint64_t &x) {
            char *p = static_cast<char *>(std::malloc(SIZE));
            *static_cast<volatile char *>(p) = 1;
            x = reinterpret_cast<uint64_t>(p);
            return p != nullptr;
        }
        void give(uint64_t x) { std::free(reinterpret_cast<void *>(x)); }
    };
};

struct MutexVector {
    std::mutex lock;
    std::vector<uint64_t> free;
    MutexVector() {
        for (uint64_t i = 0; i < SEGMENTS; i++) free.push_back(i);
    }
    struct User {
        MutexVector &pool;
        explicit User(MutexVector &p) : pool(p) {}
        bool take(uint64_t &x) {
            std::lock_guard<std::mutex> held(pool.lock);
            if (pool.free.empty()) return false;
            x = pool.free.back();
            pool.free.pop_back();
            return true;
        }
        void give(uint64_t x) {
            std::lock_guard<std::mutex> held(pool.lock);
            pool.free.push_back(x);
        }
    };
};

#ifdef HAS_BOOST
struct BoostStack {
    boost::lockfree::stack<uint64_t, boost::lockfree::capacity<SEGMENTS>> free;
    BoostStack() {
        for (uint64_t i = 0; i < SEGMENTS; i++) free.bounded_push(i);
    }
    struct User {
        BoostStack &pool;
        explicit User(BoostStack &p) : pool(p) {}
        bool take(uint64_t &x) { return pool.free.pop(x); }
        void give(uint64_t x) { pool.free.bounded_push(x); }
    };
};
#endif

#ifdef HAS_MOODYCAMEL
struct Moodycamel {
    moodycamel::ConcurrentQueue<uint64_t> free{SEGMENTS * 4};
    Moodycamel() {
        for (uint64_t i = 0; i < SEGMENTS; i++) free.enqueue(i);
    }
    struct User {
        Moodycamel &pool;
        moodycamel::ConsumerToken taker;
        moodycamel::ProducerToken giver;
        explicit User(Moodycamel &p) : pool(p), taker(p.free), giver(p.free) {}
        bool take(uint64_t &x) { return pool.free.try_dequeue(taker, x); }
        void give(uint64_t x) { pool.free.enqueue(giver, x); }
    };
};
#endif

// The least that a pool costs whose threads keep some for themselves: nobody else gets at those here, nothing is counted,
// and nothing is refused.  (R. K. Treiber, "Systems Programming: Coping with Parallelism", IBM 1986; Bonwick and Adams,
// USENIX 2001.)
struct Kept {
    uint32_t count, items[64];
};
#if defined(__GNUC__) && defined(__linux__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local Kept kept;

struct Arrays {
    std::atomic<uint64_t> head{0};  // how often it changed << 32 | number + 1
    std::atomic<uint32_t> below[SEGMENTS];
    Arrays() {
        for (uint32_t i = 0; i < SEGMENTS; i++) push(i);
    }
    void push(uint32_t i) {
        uint64_t h = head.load();
        do below[i].store(static_cast<uint32_t>(h), std::memory_order_relaxed);
        while (!head.compare_exchange_weak(h, ((h >> 32) + 1) << 32 | (i + 1)));
    }
    bool pop(uint32_t &i) {
        uint64_t h = head.load();
        do {
            i = static_cast<uint32_t>(h) - 1;
            if (static_cast<uint32_t>(h) == 0) return false;
        } while (!head.compare_exchange_weak(h, ((h >> 32) + 1) << 32 | below[i].load(std::memory_order_relaxed)));
        return true;
    }
    struct User {
        Arrays &pool;
        explicit User(Arrays &p) : pool(p) {}
        ~User() { spill(64); }
        void spill(uint32_t most) {
            for (; most != 0 && kept.count != 0; most--) pool.push(kept.items[--kept.count]);
        }
        bool take(uint64_t &x) {
            if (kept.count == 0)
                while (kept.count < 32 && pool.pop(kept.items[kept.count])) kept.count++;
            if (kept.count == 0) return false;
            x = kept.items[--kept.count];
            return true;
        }
        void give(uint64_t x) {
            if (kept.count == 64) spill(32);
            kept.items[kept.count++] = static_cast<uint32_t>(x);
        }
    };
};

std::atomic<uint64_t> sink;

// Two threads, each on a core of its own from the start, as ours (cores.py): the first two of those that may be used.
struct Cores {
    cpu_set_t allowed;
    Cores() {
        pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
        sit(0);
    }
    ~Cores() { pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed); }
    void sit(int number) const {
        if (CPU_COUNT(&allowed) < 2) return;
        for (int core = 0; core < CPU_SETSIZE; core++)
            if (CPU_ISSET(core, &allowed) && number-- == 0) {
                cpu_set_t one;
                CPU_ZERO(&one);
                CPU_SET(core, &one);
                pthread_setaffinity_np(pthread_self(), sizeof one, &one);
                return;
            }
    }
};

template <class Pool> void pairs_of(Pool &pool, long pairs) {
    typename Pool::User user(pool);
    uint64_t x = 0, sum = 0;
    for (long i = 0; i < pairs; i++) {
        while (!user.take(x)) {
        }
        sum += x;
        user.give(x);
    }
    sink += sum;  // the loop must not be thrown away
}

// Each side looks at the other's index only when what it knew is used up, and then lets the other one get ahead by a
// quarter of the ring: side by side at its edge they would go in step, and what is measured would be the ring's lines on
// their way, not the pool.
struct Ring {
    static constexpr uint64_t PLACES = 256, AHEAD = 64;
    alignas(64) std::atomic<uint64_t> head{0};
    alignas(64) std::atomic<uint64_t> tail{0};
    alignas(64) uint64_t items[PLACES];
};

static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

template <class Pool> void hand_over(Pool &pool, uint64_t pairs) {
    Ring ring;
    Cores cores;
    std::thread giver([&] {
        cores.sit(1);
        typename Pool::User user(pool);
        uint64_t room = Ring::PLACES;  // the tail may come as far as this
        for (uint64_t tail = 0; tail < pairs; tail++) {
            uint64_t x;
            while (!user.take(x)) {
            }
            if (tail == room)
                while ((room = ring.head.load(std::memory_order_acquire) + Ring::PLACES) < tail + Ring::AHEAD) relax();
            ring.items[tail % Ring::PLACES] = x;
            ring.tail.store(tail + 1, std::memory_order_release);
        }
    });
    typename Pool::User user(pool);
    uint64_t tail = 0;
    for (uint64_t head = 0; head < pairs; head++) {
        if (head == tail)
            while ((tail = ring.tail.load(std::memory_order_acquire)) < std::min(head + Ring::AHEAD, pairs)) relax();
        user.give(ring.items[head % Ring::PLACES]);
        ring.head.store(head + 1, std::memory_order_release);
    }
    giver.join();
}

template <class Pool> int measured(int shape, long pairs) {
    Pool pool;
    if (shape == 0) {
        pairs_of(pool, pairs);
    } else if (shape == 1) {
        Cores cores;
        std::thread other([&] {
            cores.sit(1);
            pairs_of(pool, pairs / 2);
        });
        pairs_of(pool, pairs / 2);
        other.join();
    } else {
        hand_over(pool, static_cast<uint64_t>(pairs));
    }
    return 0;
}

}  // namespace

// One cache line from this thread's core to another's and back, so many times: what the machine charges just now for what
// two threads share.
extern "C" int line_there_and_back(long trips) {
    alignas(128) std::atomic<long> there{0};
    alignas(128) std::atomic<long> back{0};
    Cores cores;
    std::thread other([&] {
        cores.sit(1);
        for (long i = 1; i <= trips; i++) {
            while (there.load(std::memory_order_acquire) != i) relax();
            back.store(i, std::memory_order_release);
        }
    });
    for (long i = 1; i <= trips; i++) {
        there.store(i, std::memory_order_release);
        while (back.load(std::memory_order_acquire) != i) relax();
    }
    other.join();
    return 0;
}

extern "C" int run(int kind, int shape, long pairs) {
    switch (kind) {
    case 0:
        return measured<Malloc>(shape, pairs);
    case 1:
        return measured<MutexVector>(shape, pairs);
#ifdef HAS_BOOST
    case 2:
        return measured<BoostStack>(shape, pairs);
#endif
#ifdef HAS_MOODYCAMEL
    case 3:
        return measured<Moodycamel>(shape, pairs);
#endif
    case 4:
        return measured<Arrays>(shape, pairs);
    default:
        return -1;
    }
}
