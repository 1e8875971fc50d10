// Of KIND k: k_called, a function that the test defines too, and k_caller, which calls it.
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

extern "C" {

[[gnu::noinline, gnu::noipa]] int JOIN(KIND, _called)() { return 1; }

int JOIN(KIND, _caller)() { return JOIN(KIND, _called)(); }
}
