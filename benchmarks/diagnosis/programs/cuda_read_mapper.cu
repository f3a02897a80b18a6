// Finds where reads of a sequencer lie in a genome: every 16 bases of a read are looked up in a table of the genome.
// CAUSE: low-occupancy
// ALSO:
#include <vector>

#include "_run_other.cuh"

const int GENOME = 1 << 23, SLOTS = 1 << 24, READS = 1 << 16, READ = 1024, WORD = 16, THREADS = 64;
const int LONGEST_READ = 110000;

struct Entry {
  unsigned word;
  int place;  // -1: empty
};

__host__ __device__ inline unsigned slot_of(unsigned word) { return (word * 2654435761u) >> 8; }

// One block maps one read. The read is kept in shared memory, since each base belongs to 16 words.
__global__ void map_reads(const unsigned char *reads, const int *lengths, const Entry *table, int2 *found) {
  extern __shared__ unsigned char bases[];
  __shared__ int hits, start;
  int length = lengths[blockIdx.x];
  if (threadIdx.x == 0) hits = 0, start = GENOME;
  for (int p = threadIdx.x; p < length; p += THREADS) bases[p] = reads[blockIdx.x * READ + p];
  __syncthreads();
  int own_hits = 0, own_start = GENOME;
  for (int p = threadIdx.x; p + WORD <= length; p += THREADS) {
    unsigned word = 0;
    for (int k = 0; k < WORD; k++) word = word << 2 | bases[p + k];
    for (unsigned slot = slot_of(word);; slot = (slot + 1) % SLOTS) {
      Entry entry = table[slot];
      if (entry.place >= 0 && entry.word != word) continue;
      if (entry.place >= 0) own_hits++, own_start = min(own_start, entry.place - p);
      break;
    }
  }
  own_hits = __reduce_add_sync(~0u, own_hits);
  own_start = __reduce_min_sync(~0u, own_start);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&hits, own_hits);
    atomicMin(&start, own_start);
  }
  __syncthreads();
  if (threadIdx.x == 0) found[blockIdx.x] = make_int2(hits, start);
}

int main(int argc, char **argv) {
  unsigned seed = 5;
  auto draw = [&](unsigned n) { return ((seed = seed * 1664525u + 1013904223u) >> 8) % n; };
  std::vector<unsigned char> genome(GENOME), reads(size_t(READS) * READ);
  for (auto &base : genome) base = draw(4096) >> 10;
  std::vector<Entry> table(SLOTS, Entry{0, -1});
  unsigned word = 0;
  for (int p = 0; p < GENOME; p++) {
    word = word << 2 | genome[p];
    unsigned slot = slot_of(word);
    while (table[slot].place >= 0 && table[slot].word != word) slot = (slot + 1) % SLOTS;
    if (p + 1 >= WORD && table[slot].place < 0) table[slot] = Entry{word, p + 1 - WORD};
  }
  std::vector<int> lengths(READS);
  int longest = 0;
  for (int r = 0; r < READS; r++) {
    lengths[r] = READ - draw(64), longest = std::max(longest, lengths[r]);
    int from = draw(GENOME - READ);
    for (int p = 0; p < READ; p++) reads[size_t(r) * READ + p] = draw(32) ? genome[from + p] : draw(4096) >> 10;
  }
  const size_t room = is_main_fixed(argc, argv) ? longest : LONGEST_READ;  // fault
  cudaFuncSetAttribute(map_reads, cudaFuncAttributeMaxDynamicSharedMemorySize, int(room));

  unsigned char *reads_there;
  int *lengths_there;
  Entry *table_there;
  int2 *found, sample[READS / 64];
  cudaMalloc(&reads_there, reads.size());
  cudaMalloc(&lengths_there, sizeof(int) * READS);
  cudaMalloc(&table_there, sizeof(Entry) * SLOTS);
  cudaMalloc(&found, sizeof(int2) * READS);
  cudaMemcpy(reads_there, reads.data(), reads.size(), cudaMemcpyHostToDevice);
  cudaMemcpy(lengths_there, lengths.data(), sizeof(int) * READS, cudaMemcpyHostToDevice);
  cudaMemcpy(table_there, table.data(), sizeof(Entry) * SLOTS, cudaMemcpyHostToDevice);

  int code = run(argc, argv, [&] {
    map_reads<<<READS, THREADS, room>>>(reads_there, lengths_there, table_there, found);  // fault
  });
  cudaMemcpy(sample, found, sizeof sample, cudaMemcpyDeviceToHost);
  long sum = 0;
  for (int2 s : sample) sum += s.x + s.y;
  fprintf(stderr, "some of it: %ld\n", sum);
  return code;
}
