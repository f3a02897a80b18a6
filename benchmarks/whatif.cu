// Programs of kernels of known length and their changes, for docs/whatif.md: `whatif SCENARIO|all [record] [iterations]
// [blocks]` prints a line of JSON per variant; with `record` only the program as it is, between cudaProfilerStart and Stop.
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <cuda_profiler_api.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

__device__ __forceinline__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }
extern "C" {
__global__ void gemm_spin(long long cycles) { spin(cycles); }
__global__ void relu_spin(long long cycles) { spin(cycles); }
__global__ void side_spin(long long cycles) { spin(cycles); }
__global__ void tiny_spin(long long cycles) { spin(cycles); }
}
typedef std::map<std::string, double> Params;
static double cycles_per_us = 1980;
static double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static void busy(double us) { double t = now_us(); while (now_us() - t < us) {} }
static void host(const char* name, double us) { nvtxRangePushA(name); busy(us); nvtxRangePop(); }
static long long cyc(double us) { return (long long)(us * cycles_per_us); }

struct State {
  cudaStream_t s, side; cudaEvent_t e1, e2, e3; void *dev, *pinned, *pageable; cudaGraphExec_t graph = nullptr; int index = 0;
  std::atomic<int> turn{0}; std::atomic<bool> stop{false};
};
static void worker(State& st, const Params& p) {
  for (;;) {
    while (st.turn.load() != 1) if (st.stop.load()) return;
    nvtxRangePushA("backward_all");
    for (int k = 0; k < 5; k++) { host("backward", p.at("backward")); relu_spin<<<1, 32, 0, st.s>>>(cyc(p.at("relu"))); }
    nvtxRangePop();
    st.turn.store(2);
  }
}
static void step(const std::string& sc, const Params& p, State& st) {
  auto P = [&](const char* n) { return p.at(n); };
  auto gemm = [&](cudaStream_t s) { gemm_spin<<<1, 32, 0, s>>>(cyc(P("gemm"))); };
  auto relu = [&](cudaStream_t s) { relu_spin<<<1, 32, 0, s>>>(cyc(P("relu"))); };
  if (sc == "device" || sc == "host") {
    for (int k = 0; k < 10; k++) { host("prepare", P("prepare")); gemm(st.s); relu(st.s); }
    host("log", P("log"));
  } else if (sc == "blocking") {
    for (int k = 0; k < 5; k++) { host("prepare", P("prepare")); gemm(st.s); relu(st.s); }
    if (P("sync") > 0) CHECK(cudaMemcpy(st.pageable, st.dev, 4, cudaMemcpyDeviceToHost));
    else CHECK(cudaMemcpyAsync(st.pinned, st.dev, 4, cudaMemcpyDeviceToHost, st.s));
    host("decide", P("decide"));
  } else if (sc == "streams") {
    gemm(st.s); CHECK(cudaEventRecord(st.e1, st.s)); CHECK(cudaStreamWaitEvent(st.side, st.e1));
    side_spin<<<1, 32, 0, st.side>>>(cyc(P("side"))); CHECK(cudaEventRecord(st.e2, st.side));
    gemm(st.s); gemm(st.s); CHECK(cudaStreamWaitEvent(st.s, st.e2)); relu(st.s);
    if (P("sync") > 0) CHECK(cudaStreamSynchronize(st.s));
    host("log", P("log"));
  } else if (sc == "launches") {
    if (P("graph") > 0) {
      if (!st.graph) {
        cudaGraph_t g; CHECK(cudaStreamBeginCapture(st.s, cudaStreamCaptureModeGlobal));
        for (int k = 0; k < 100; k++) tiny_spin<<<1, 32, 0, st.s>>>(cyc(P("tiny")));
        CHECK(cudaStreamEndCapture(st.s, &g)); CHECK(cudaGraphInstantiate(&st.graph, g, 0)); CHECK(cudaGraphUpload(st.graph, st.s));
      }
      CHECK(cudaGraphLaunch(st.graph, st.s));
    } else for (int k = 0; k < 100; k++) tiny_spin<<<1, 32, 0, st.s>>>(cyc(P("tiny")));
    CHECK(cudaStreamSynchronize(st.s)); host("log", P("log"));
  } else if (sc == "graph") {
    if (!st.graph) {
      cudaGraph_t g; CHECK(cudaStreamBeginCapture(st.s, cudaStreamCaptureModeGlobal));
      for (int k = 0; k < 20; k++) { gemm(st.s); relu(st.s); }
      CHECK(cudaStreamEndCapture(st.s, &g)); CHECK(cudaGraphInstantiate(&st.graph, g, 0)); CHECK(cudaGraphUpload(st.graph, st.s));
    }
    host("prepare", P("prepare")); CHECK(cudaGraphLaunch(st.graph, st.s));
    if (P("sync") > 0) CHECK(cudaStreamSynchronize(st.s));
    host("log", P("log"));
  } else if (sc == "copies") {
    // copy stream fills one of two buffers; the compute stream waits for it; the copy waits for the compute of two steps before
    CHECK(cudaStreamWaitEvent(st.side, st.e2));
    CHECK(cudaMemcpyAsync(st.dev, st.pinned, (size_t)(P("megabytes") * 1e6), cudaMemcpyHostToDevice, st.side));
    CHECK(cudaEventRecord(st.e1, st.side)); CHECK(cudaStreamWaitEvent(st.s, st.e1));
    gemm(st.s); CHECK(cudaEventRecord(st.e2, st.s)); relu(st.s);
    host("log", P("log"));
  } else if (sc == "threads") {
    for (int k = 0; k < 5; k++) { host("prepare", P("prepare")); gemm(st.s); }
    st.turn.store(1); while (st.turn.load() != 2) {} st.turn.store(0);
    CHECK(cudaStreamSynchronize(st.s)); host("log", P("log"));
  } else if (sc == "ahead") {  // the host runs one step ahead of the device
    for (int k = 0; k < 5; k++) { host("prepare", P("prepare")); gemm(st.s); relu(st.s); }
    cudaEvent_t mine = st.index % 2 ? st.e1 : st.e2, other = st.index % 2 ? st.e2 : st.e1;
    CHECK(cudaEventRecord(mine, st.s)); CHECK(cudaEventSynchronize(other)); st.index++;
    host("log", P("log"));
  } else { fprintf(stderr, "no scenario %s\n", sc.c_str()); exit(2); }
}
static double block(const std::string& sc, const Params& p, State& st, int iterations) {
  double t = now_us();
  for (int i = 0; i < iterations; i++) { nvtxRangePushA("step"); step(sc, p, st); nvtxRangePop(); }
  CHECK(cudaDeviceSynchronize());
  return (now_us() - t) / iterations;
}
static double calibrate() {
  cudaEvent_t a, b; CHECK(cudaEventCreate(&a)); CHECK(cudaEventCreate(&b));
  float ms = 0; const long long n = 20000000;
  for (int k = 0; k < 30; k++) gemm_spin<<<1, 32>>>(n);  // clocks
  CHECK(cudaDeviceSynchronize());
  for (int k = 0; k < 3; k++) { CHECK(cudaEventRecord(a)); gemm_spin<<<1, 32>>>(n); CHECK(cudaEventRecord(b)); CHECK(cudaEventSynchronize(b)); }
  CHECK(cudaEventElapsedTime(&ms, a, b));
  return n / (ms * 1000.0);
}
struct Variant { const char *scenario, *name, *arguments; Params changed; };
static const std::map<std::string, Params> BASES = {
  {"device", {{"prepare", 5}, {"gemm", 60}, {"relu", 20}, {"log", 15}}},
  {"host", {{"prepare", 40}, {"gemm", 25}, {"relu", 8}, {"log", 30}}},
  {"blocking", {{"prepare", 30}, {"gemm", 60}, {"relu", 20}, {"decide", 60}, {"sync", 1}}},
  {"streams", {{"gemm", 100}, {"side", 150}, {"relu", 40}, {"log", 25}, {"sync", 1}}},
  {"launches", {{"tiny", 1.5}, {"log", 20}, {"graph", 0}}},
  {"graph", {{"prepare", 150}, {"gemm", 20}, {"relu", 6}, {"log", 25}, {"sync", 1}}},
  {"copies", {{"megabytes", 16}, {"gemm", 120}, {"relu", 40}, {"log", 20}}},
  {"threads", {{"prepare", 30}, {"gemm", 40}, {"relu", 50}, {"backward", 35}, {"log", 25}}},
  {"ahead", {{"prepare", 20}, {"gemm", 40}, {"relu", 15}, {"log", 25}}},
};
static const std::vector<Variant> VARIANTS = {
  {"device", "base", "", {}},
  {"device", "gemm/2", "--faster gemm*=2", {{"gemm", 30}}},
  {"device", "gemm/10", "--faster gemm*=10", {{"gemm", 6}}},
  {"device", "relu/10", "--faster relu*=10", {{"relu", 2}}},
  {"device", "gemm/10 relu/10", "--faster gemm*=10 --faster relu*=10", {{"gemm", 6}, {"relu", 2}}},
  {"device", "prepare/2", "--faster host:prepare=2", {{"prepare", 2.5}}},
  {"host", "base", "", {}},
  {"host", "gemm/2", "--faster gemm*=2", {{"gemm", 12.5}}},
  {"host", "gemm/10", "--faster gemm*=10", {{"gemm", 2.5}}},
  {"host", "prepare/2", "--faster host:prepare=2", {{"prepare", 20}}},
  {"host", "prepare/10", "--faster host:prepare=10", {{"prepare", 4}}},
  {"host", "gemm/2 prepare/10", "--faster gemm*=2 --faster host:prepare=10", {{"gemm", 12.5}, {"prepare", 4}}},
  {"host", "log/10", "--faster host:log=10", {{"log", 3}}},
  {"blocking", "base", "", {}},
  {"blocking", "gemm/2", "--faster gemm*=2", {{"gemm", 30}}},
  {"blocking", "gemm/10", "--faster gemm*=10", {{"gemm", 6}}},
  {"blocking", "prepare/2", "--faster host:prepare=2", {{"prepare", 15}}},
  {"blocking", "prepare/10", "--faster host:prepare=10", {{"prepare", 3}}},
  {"blocking", "decide/10", "--faster host:decide=10", {{"decide", 6}}},
  {"blocking", "no sync", "--without sync", {{"sync", 0}}},
  {"blocking", "gemm/10 prepare/10", "--faster gemm*=10 --faster host:prepare=10", {{"gemm", 6}, {"prepare", 3}}},
  {"streams", "base", "", {}},
  {"streams", "gemm/2", "--faster gemm*=2", {{"gemm", 50}}},
  {"streams", "gemm/10", "--faster gemm*=10", {{"gemm", 10}}},
  {"streams", "side/2", "--faster side*=2", {{"side", 75}}},
  {"streams", "relu/10", "--faster relu*=10", {{"relu", 4}}},
  {"streams", "gemm/2 side/2", "--faster gemm*=2 --faster side*=2", {{"gemm", 50}, {"side", 75}}},
  {"streams", "side*2", "--faster side*=0.5", {{"side", 300}}},
  {"streams", "no sync", "--without sync", {{"sync", 0}}},
  {"launches", "base", "", {}},
  {"launches", "tiny/2", "--faster tiny*=2", {{"tiny", 0.75}}},
  {"launches", "graph", "--graph", {{"graph", 1}}},
  {"launches", "log/10", "--faster host:log=10", {{"log", 2}}},
  {"graph", "base", "", {}},
  {"graph", "gemm/2", "--faster gemm*=2", {{"gemm", 10}}},
  {"graph", "gemm/10", "--faster gemm*=10", {{"gemm", 2}}},
  {"graph", "prepare/2", "--faster host:prepare=2", {{"prepare", 75}}},
  {"graph", "prepare/10", "--faster host:prepare=10", {{"prepare", 15}}},
  {"graph", "no sync", "--without sync", {{"sync", 0}}},
  {"copies", "base", "", {}},
  {"copies", "copies/2", "--faster copies=2", {{"megabytes", 8}}},
  {"copies", "copies/10", "--faster copies=10", {{"megabytes", 1.6}}},
  {"copies", "gemm/2", "--faster gemm*=2", {{"gemm", 60}}},
  {"copies", "relu/10", "--faster relu*=10", {{"relu", 4}}},
  {"copies", "copies/2 gemm/10", "--faster copies=2 --faster gemm*=10", {{"megabytes", 8}, {"gemm", 12}}},
  {"threads", "base", "", {}},
  {"threads", "gemm/10", "--faster gemm*=10", {{"gemm", 4}}},
  {"threads", "relu/2", "--faster relu*=2", {{"relu", 25}}},
  {"threads", "prepare/10", "--faster host:prepare=10", {{"prepare", 3}}},
  {"threads", "backward/2", "--faster host:backward=2", {{"backward", 17.5}}},
  {"threads", "backward/10 relu/10", "--faster host:backward=10 --faster relu*=10", {{"backward", 3.5}, {"relu", 5}}},
  {"ahead", "base", "", {}},
  {"ahead", "gemm/2", "--faster gemm*=2", {{"gemm", 20}}},
  {"ahead", "gemm/10 relu/10", "--faster gemm*=10 --faster relu*=10", {{"gemm", 4}, {"relu", 1.5}}},
  {"ahead", "prepare/10", "--faster host:prepare=10", {{"prepare", 2}}},
};
static State* fresh(const std::string& sc) {
  State* st = new State();
  CHECK(cudaStreamCreateWithFlags(&st->s, cudaStreamNonBlocking)); CHECK(cudaStreamCreateWithFlags(&st->side, cudaStreamNonBlocking));
  if (sc == "blocking") { st->s = 0; }
  for (cudaEvent_t* e : {&st->e1, &st->e2, &st->e3}) CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  CHECK(cudaMalloc(&st->dev, 32 << 20)); CHECK(cudaMallocHost(&st->pinned, 32 << 20)); st->pageable = malloc(4096);
  return st;
}
static void variant(const Variant& v, int iterations, int blocks, bool record) {
  Params p = BASES.at(v.scenario);
  for (auto& c : v.changed) p[c.first] = c.second;
  State& st = *fresh(v.scenario);
  std::thread other;
  if (!strcmp(v.scenario, "threads")) other = std::thread([&] { CHECK(cudaSetDevice(0)); worker(st, p); });
  std::vector<double> loops;
  block(v.scenario, p, st, 20);
  if (record) CHECK(cudaProfilerStart());
  for (int b = 0; b < blocks; b++) loops.push_back(block(v.scenario, p, st, iterations));
  if (record) CHECK(cudaProfilerStop());
  st.stop.store(true); if (other.joinable()) other.join();
  std::vector<double> sorted = loops; std::sort(sorted.begin(), sorted.end());
  printf("{\"program\": \"cpp\", \"scenario\": \"%s\", \"variant\": \"%s\", \"arguments\": \"%s\", \"recorded\": %s, \"median_us\": %.4f, \"low_us\": %.4f, \"high_us\": %.4f, \"cycles_per_us\": %.3f}\n",
         v.scenario, v.name, v.arguments, record ? "true" : "false", sorted[sorted.size() / 2], sorted.front(), sorted.back(), cycles_per_us);
  fflush(stdout);
}
int main(int argc, char** argv) {
  std::string scenario = argc > 1 ? argv[1] : "all"; bool record = argc > 2 && !strcmp(argv[2], "record");
  int iterations = argc > 3 ? atoi(argv[3]) : 40, blocks = argc > 4 ? atoi(argv[4]) : 15;
  CHECK(cudaFree(0)); cycles_per_us = calibrate();
  for (const Variant& v : VARIANTS) {
    if (scenario != "all" && scenario != v.scenario) continue;
    if (record && strcmp(v.name, "base")) continue;
    variant(v, iterations, record ? 1 : blocks, record);
  }
  if (!record && scenario == "all")  // every base once more, to see drift
    for (const Variant& v : VARIANTS) if (!strcmp(v.name, "base")) variant(v, iterations, blocks, false);
  fprintf(stderr, "cycles per us: %.2f then %.2f\n", cycles_per_us, calibrate());
  return 0;
}
