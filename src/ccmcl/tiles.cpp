// The three changes of basis behind tiles.py, for pictures with the channels of a pixel side by side.
//
// A 6x6 tile of the picture, moved on by 4, becomes 36 numbers, a 4x4 tile of a convolution is made of 36, and a 4x4
// tile is spread over 36 for the gradient of the kernel. Rows first, then columns; the one-dimensional maps take a
// polynomial at the points 0, +-a, +-b and infinity with a = sqrt(1/2), b = sqrt(2), which keeps rounding errors near
// those of a plain convolution.

#include <cstddef>

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));

static const long LANES = 16;
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

struct Place {
  long picture, row, column;
};

static inline Place place_of(long tile, long height, long width) {
  const long down = (height + 3) / 4, across = (width + 3) / 4;
  return {tile / (down * across), 4 * (tile / across % down), 4 * (tile % across)};
}

// Reads SIDE x SIDE pixels from (row, column) on, zeros outside, and writes 36 numbers for each channel of the tile.
template <int SIDE, void change(const vec *, vec *), long BEFORE>
static void gathered(const float *pictures, float *products, long height, long width, long channels, long first,
                     long last, long begin, long stride) {
  for (long tile = first; tile < last; tile++) {
    const Place at = place_of(tile, height, width);
    for (long channel = 0; channel < channels; channel += LANES) {
      vec half[6][SIDE];
      for (int j = 0; j < SIDE; j++) {
        vec line[SIDE], made[6];
        const long column = at.column + j - BEFORE;
        for (int i = 0; i < SIDE; i++) {
          const long row = at.row + i - BEFORE;
          const bool inside = row >= 0 && row < height && column >= 0 && column < width;
          const size_t pixel = inside ? (at.picture * height + row) * width + column : 0;
          line[i] = inside ? *(const vec *)(pictures + pixel * channels + channel) : vec{};
        }
        change(line, made);
        for (int i = 0; i < 6; i++) half[i][j] = made[i];
      }
      for (int i = 0; i < 6; i++) {
        vec made[6];
        change(half[i], made);
        for (int j = 0; j < 6; j++)
          *(vec *)(products + ((size_t)(6 * i + j) * stride + tile - begin) * channels + channel) = made[j];
      }
    }
  }
}

// Of tiles first <= t < last: those of one call's buffer begin at begin, and stride of them fit into it.

extern "C" void take_tiles(const float *pictures, float *products, long height, long width, long channels, long first,
                           long last, long begin, long stride) {
  gathered<6, taken, 1>(pictures, products, height, width, channels, first, last, begin, stride);
}

extern "C" void spread_tiles(const float *pictures, float *products, long height, long width, long channels, long first,
                             long last, long begin, long stride) {
  gathered<4, spread, 0>(pictures, products, height, width, channels, first, last, begin, stride);
}

extern "C" void put_tiles(const float *products, float *pictures, long height, long width, long channels, long first,
                          long last, long begin, long stride) {
  for (long tile = first; tile < last; tile++) {
    const Place at = place_of(tile, height, width);
    for (long channel = 0; channel < channels; channel += LANES) {
      vec half[4][6];
      for (int j = 0; j < 6; j++) {
        vec line[6], made[4];
        for (int i = 0; i < 6; i++)
          line[i] = *(const vec *)(products + ((size_t)(6 * i + j) * stride + tile - begin) * channels + channel);
        put(line, made);
        for (int i = 0; i < 4; i++) half[i][j] = made[i];
      }
      for (int i = 0; i < 4 && at.row + i < height; i++) {
        vec made[4];
        put(half[i], made);
        for (int j = 0; j < 4 && at.column + j < width; j++) {
          const size_t pixel = (at.picture * height + at.row + i) * width + at.column + j;
          *(vec *)(pictures + pixel * channels + channel) = made[j];
        }
      }
    }
  }
}
