// What is behind tiles.py: convolutions of pictures that have the channels of a pixel side by side.
//
// A 6x6 tile of the picture, moved on by 4, becomes 36 numbers, a 4x4 tile of a convolution is made of 36, and a 4x4
// tile is spread over 36 for the gradient of the kernel. Rows first, then columns; the one-dimensional maps take a
// polynomial at the points 0, +-a, +-b and infinity with a = sqrt(1/2), b = sqrt(2), which keeps rounding errors near
// those of a plain convolution.
//
// Between these changes of basis lie 36 products of matrices. A few tiles at a time are taken all the way, so that what is
// in hand stays in a core's own cache. There, the numbers of a place (one of the 36) lie in panels of 16 channels,
// each with its tiles one after the other.

#include <cstddef>

#if defined(__AVX512F__)
enum { LANES = 16, TILES = 12, ROWS = 16 };  // what the registers have room for
#else
enum { LANES = 8, TILES = 6, ROWS = 4 };
#endif
enum { PANEL = 16, PARTS = PANEL / LANES };

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static const float a = 0.70710678118654752f, b = 1.41421356237309505f;

static inline void taken(const vec x[6], vec to[6]) {
  const vec even_a = x[4] - 2.0f * x[2], odd_a = a * x[3] - (2.0f * a) * x[1];
  const vec even_b = x[4] - 0.5f * x[2], odd_b = b * x[3] - (0.5f * b) * x[1];
  to[0] = x[0] - 2.5f * x[2] + x[4];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = x[1] - 2.5f * x[3] + x[5];
}

static inline void put(const vec x[6], vec to[4]) {
  const vec sum_a = x[1] + x[2], rest_a = x[1] - x[2], sum_b = x[3] + x[4], rest_b = x[3] - x[4];
  to[0] = x[0] + sum_a + sum_b;
  to[1] = a * rest_a + b * rest_b;
  to[2] = 0.5f * sum_a + 2.0f * sum_b;
  to[3] = (0.5f * a) * rest_a + (2.0f * b) * rest_b + x[5];
}

static inline void spread(const vec x[4], vec to[6]) {  // put, transposed
  const vec even_a = x[0] + 0.5f * x[2], odd_a = a * x[1] + (0.5f * a) * x[3];
  const vec even_b = x[0] + 2.0f * x[2], odd_b = b * x[1] + (2.0f * b) * x[3];
  to[0] = x[0];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = x[3];
}

struct Size {
  long height, width;
};

struct Place {
  long picture, row, column;
};

static inline Place place_of(long tile, Size size) {
  const long down = (size.height + 3) / 4, across = (size.width + 3) / 4;
  return {tile / (down * across), 4 * (tile / across % down), 4 * (tile % across)};
}

// So far apart in hand are the numbers of two places: not a power of two, or they would crowd one corner of the cache.
static inline size_t apart(long channels, long room) { return (size_t)channels * room + PANEL; }

static inline size_t at(int place, long channel, long tile, long channels, long room) {
  return place * apart(channels, room) + ((size_t)(channel / PANEL) * room + tile) * PANEL + channel % PANEL;
}

// Reads SIDE x SIDE pixels of each tile, zeros outside, and takes 36 numbers for each channel into the hand.
template <int SIDE, void change(const vec *, vec *), long BEFORE>
static void gather(const float *pictures, float *hand, Size size, long channels, long begin, long count, long room) {
  for (long tile = 0; tile < count; tile++) {
    const Place corner = place_of(begin + tile, size);
    for (long channel = 0; channel < channels; channel += LANES) {
      vec half[6][SIDE];
      for (int j = 0; j < SIDE; j++) {
        vec line[SIDE], made[6];
        const long column = corner.column + j - BEFORE;
        for (int i = 0; i < SIDE; i++) {
          const long row = corner.row + i - BEFORE;
          const bool inside = row >= 0 && row < size.height && column >= 0 && column < size.width;
          const size_t pixel = inside ? (corner.picture * size.height + row) * size.width + column : 0;
          line[i] = inside ? *(const vec *)(pictures + pixel * channels + channel) : vec{};
        }
        change(line, made);
        for (int i = 0; i < 6; i++) half[i][j] = made[i];
      }
      for (int i = 0; i < 6; i++) {
        vec made[6];
        change(half[i], made);
        for (int j = 0; j < 6; j++) *(vec *)(hand + at(6 * i + j, channel, tile, channels, room)) = made[j];
      }
    }
  }
}

// Makes 4x4 pixels of each tile from 36 numbers for each channel.
static void lay(const float *hand, float *pictures, Size size, long channels, long begin, long count, long room) {
  for (long tile = 0; tile < count; tile++) {
    const Place corner = place_of(begin + tile, size);
    for (long channel = 0; channel < channels; channel += LANES) {
      vec half[4][6];
      for (int j = 0; j < 6; j++) {
        vec line[6], made[4];
        for (int i = 0; i < 6; i++) line[i] = *(const vec *)(hand + at(6 * i + j, channel, tile, channels, room));
        put(line, made);
        for (int i = 0; i < 4; i++) half[i][j] = made[i];
      }
      for (int i = 0; i < 4 && corner.row + i < size.height; i++) {
        vec made[4];
        put(half[i], made);
        for (int j = 0; j < 4 && corner.column + j < size.width; j++) {
          const size_t pixel = (corner.picture * size.height + corner.row + i) * size.width + corner.column + j;
          *(vec *)(pictures + pixel * channels + channel) = made[j];
        }
      }
    }
  }
}

// One panel of a product for TILES tiles at once: every channel of theirs, times a row of the factors.
static inline void multiply(const float *taken, const float *factors, float *products, long channels, long room) {
  vec total[TILES][PARTS] = {};
  for (long panel = 0; panel < channels; panel += PANEL, taken += room * PANEL)
    for (int lane = 0; lane < PANEL; lane++, factors += PANEL) {
      vec row[PARTS];
#pragma GCC unroll 4
      for (int part = 0; part < PARTS; part++) row[part] = *(const vec *)(factors + part * LANES);
#pragma GCC unroll 16
      for (int tile = 0; tile < TILES; tile++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) total[tile][part] += taken[tile * PANEL + lane] * row[part];
    }
#pragma GCC unroll 16
  for (int tile = 0; tile < TILES; tile++)
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) *(vec *)(products + tile * PANEL + part * LANES) = total[tile][part];
}

// ROWS output channels by a panel of input channels: the sum over tiles of one times the other, on top of what is there.
static inline void accumulate(const float *spread, const float *taken, float *sums, long inputs, long count) {
  vec total[ROWS][PARTS];
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) total[row][part] = *(const vec *)(sums + row * inputs + part * LANES);
  for (long tile = 0; tile < count; tile++, spread += PANEL, taken += PANEL) {
    vec line[PARTS];
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) line[part] = *(const vec *)(taken + part * LANES);
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
      for (int part = 0; part < PARTS; part++) total[row][part] += spread[row] * line[part];
  }
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) *(vec *)(sums + row * inputs + part * LANES) = total[row][part];
}

// Both take the tiles first <= t < last, room of them at a time, a multiple of 12; the hand has room for both sides.

// The factors are those of the kernel, 36 x outputs / 16 x inputs x 16.
extern "C" void convolve(const float *x, const float *factors, float *y, float *hand, long height, long width,
                         long inputs, long outputs, long first, long last, long room) {
  const Size size = {height, width};
  float *products = hand + 36 * apart(inputs, room);
  for (long begin = first; begin < last; begin += room) {
    const long count = last - begin < room ? last - begin : room;
    gather<6, taken, 1>(x, hand, size, inputs, begin, count, room);
    for (int place = 0; place < 36; place++)
      for (long output = 0; output < outputs; output += PANEL)
        for (long tile = 0; tile < count; tile += TILES)
          multiply(hand + at(place, 0, tile, inputs, room), factors + ((size_t)place * outputs + output) * inputs,
                   products + at(place, output, tile, outputs, room), inputs, room);
    lay(products, y, size, outputs, begin, count, room);
  }
}

// What is found is added to the sums, 36 x outputs x inputs.
extern "C" void correlate(const float *x, const float *y, float *sums, float *hand, long height, long width,
                          long inputs, long outputs, long first, long last, long room) {
  const Size size = {height, width};
  float *other = hand + 36 * apart(inputs, room);
  for (long begin = first; begin < last; begin += room) {
    const long count = last - begin < room ? last - begin : room;
    gather<6, taken, 1>(x, hand, size, inputs, begin, count, room);
    gather<4, spread, 0>(y, other, size, outputs, begin, count, room);
    for (int place = 0; place < 36; place++)
      for (long input = 0; input < inputs; input += PANEL)
        for (long output = 0; output < outputs; output += ROWS)
          accumulate(other + at(place, output, 0, outputs, room), hand + at(place, input, 0, inputs, room),
                     sums + ((size_t)place * outputs + output) * inputs + input, inputs, count);
  }
}
