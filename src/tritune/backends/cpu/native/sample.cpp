#include "sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "hash.h"
#include "rows_kernels.h"
#include "vector_math.h"

namespace tritune {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tokens in bins by how far their z lies below the largest: the threshold of top-k or top-p lies in one bin, and only
// that bin's tokens need an order. The bin is a monotone function of z, so no token is put on the wrong side.
class Bins {
public:
    Bins(const float* z, float top, Index n, float* candidates) : z_(z), top_(top), n_(n), candidates_(candidates) {}

    // The z of the k-th largest token.
    float top_k(Index k) {
        count(-kInfinity);
        Index above = 0;
        int bin = 0;
        while (bin < kBins - 1 && above + counts_[bin] < k) above += counts_[bin++];
        const Index found = collect(bin, -kInfinity);
        if (found == 0) return -kInfinity;  // NaN among the logits
        const Index place = std::min(k - above, found) - 1;
        std::nth_element(candidates_, candidates_ + place, candidates_ + found, std::greater<float>());
        return candidates_[place];
    }

    // The z of the last token of the smallest set of likeliest tokens, among those at `floor` or above, whose share of
    // the probability reaches p.
    float top_p(double p, float floor) {
        count(floor);
        double whole = 0;
        for (int bin = 0; bin < kBins; ++bin) whole += masses_[bin];
        const double wanted = p * whole;
        double mass = 0;
        int bin = 0;
        while (bin < kBins - 1 && mass + masses_[bin] < wanted) mass += masses_[bin++];
        const Index found = collect(bin, floor);
        if (found == 0) return floor;
        std::sort(candidates_, candidates_ + found, std::greater<float>());
        for (Index i = 0; i < found; ++i) {
            mass += std::exp(static_cast<double>(candidates_[i]) - static_cast<double>(top_));
            if (mass >= wanted) return candidates_[i];
        }
        return candidates_[found - 1];
    }

private:
    static constexpr int kBins = 2048;
    static constexpr float kPerUnit = 64.0f;  // bins for a factor e of probability; the last bin holds all the rest

    int bin_of(float z) const {
        const float place = (top_ - z) * kPerUnit;
        return place < static_cast<float>(kBins - 1) ? static_cast<int>(place) : kBins - 1;  // NaN: the last
    }

    void count(float floor) {
        std::fill(counts_, counts_ + kBins, 0);
        std::fill(masses_, masses_ + kBins, 0.0);
        for (Index v = 0; v < n_; ++v) {
            const float z = z_[v];
            if (!(z >= floor)) continue;
            const int bin = bin_of(z);
            ++counts_[bin];
            masses_[bin] += static_cast<double>(exp_float(z - top_));
        }
    }

    Index collect(int bin, float floor) {
        Index found = 0;
        for (Index v = 0; v < n_; ++v) {
            if (z_[v] >= floor && bin_of(z_[v]) == bin) candidates_[found++] = z_[v];
        }
        return found;
    }

    const float* z_;
    const float top_;
    const Index n_;
    float* candidates_;
    Index counts_[kBins];
    double masses_[kBins];
};

struct Settings {
    float temperature, top_p, min_p, penalty;
    std::uint32_t top_k, seed, draw;
};

// The least z that is kept.
double threshold(const float* z, float top, Index n, const Settings& how, float* candidates) {
    float floor = std::numeric_limits<float>::lowest();
    Bins bins(z, top, n, candidates);
    if (how.top_k > 0 && static_cast<Index>(how.top_k) < n) floor = std::max(floor, bins.top_k(how.top_k));
    if (how.top_p < 1.0f) floor = std::max(floor, bins.top_p(static_cast<double>(how.top_p), floor));
    if (how.min_p <= 0.0f) return floor;
    return std::max(static_cast<double>(floor), static_cast<double>(top) + std::log(static_cast<double>(how.min_p)));
}

// The token of the largest z + gumbel, gumbel = -log(-log(u)), among those with z >= floor. Two logarithms a token would
// be most of the op's time. A token can beat `best` only if -log(u) < e^(z - best), and 1 - u <= -log(u), so
// 1 - u < e^(z - top) * e^(top - best) is asked first; few tokens pass.
Index draw(const RowKernels& kernels, const float* z, float top, Index n, const Settings& how, double floor) {
    constexpr Index kPiece = 512;
    std::uint32_t upper24[kPiece];
    float weight[kPiece];
    const std::uint32_t seed_hash = hash_next(hash_u32(how.seed), how.draw);
    Index token = 0;
    double best = -std::numeric_limits<double>::infinity();
    float chance = 1e30f;  // e^(top - best), with a margin for rounding
    for (Index begin = 0; begin < n; begin += kPiece) {
        const Index count = std::min(kPiece, n - begin);
        kernels.draw_words(z + begin, top, seed_hash, static_cast<std::uint32_t>(begin), upper24, weight, count);
        for (Index i = 0; i < count; ++i) {
            const float below = static_cast<float>(0xffffffu - upper24[i]) * 0x1p-24f;  // not more than 1 - u
            if (below >= weight[i] * chance || !(static_cast<double>(z[begin + i]) >= floor)) continue;
            const double u = (static_cast<double>(upper24[i]) + 0.5) * 0x1p-24;
            const double score = static_cast<double>(z[begin + i]) - std::log(-std::log(u));
            if (score > best) {
                best = score;
                token = begin + i;
                chance = static_cast<float>(std::exp(static_cast<double>(top) - best)) * 1.001f;
            }
        }
    }
    return token;
}

void sample_row(const RowKernels& kernels, const float* logits, const Settings& how, const std::uint32_t* seen,
                const std::uint32_t* allowed, float* scratch, Index n, Index& token, float& logprob) {
    const float top_logit = kernels.maximum(logits, n);
    const double lse = std::log(kernels.sum_exp(logits, top_logit, n)) + static_cast<double>(top_logit);
    const bool greedy = !(how.temperature > 0.0f);
    const float* z = logits;
    if (!greedy || how.penalty != 1.0f || allowed != nullptr) {
        kernels.warp(logits, seen, allowed, how.penalty, how.temperature, scratch, n);
        z = scratch;
    }
    const float top = kernels.maximum(z, n);
    if (greedy) {
        token = std::find(z, z + n, top) - z;
        if (token == n) token = 0;  // NaN alone
    } else {
        token = draw(kernels, z, top, n, how, threshold(z, top, n, how, scratch + n));
    }
    logprob = static_cast<float>(static_cast<double>(logits[token]) - lse);
}

}  // namespace

void sample(Pool& pool, const float* logits, const float* settings, std::uint32_t* state, std::uint32_t* seen,
            const std::uint32_t* allowed, std::int32_t* token, float* logprob, float* scratch, Index sequences,
            Index vocabulary, Index words) {
    const RowKernels& kernels = row_kernels(pool.isa());
    pool.parallel(sequences, [&](Index begin, Index end, int share) {
        for (Index s = begin; s < end; ++s) {
            const float* f = settings + 4 * s;
            std::uint32_t* u = state + 4 * s;
            Index drawn = 0;
            sample_row(kernels, logits + s * vocabulary, {f[0], f[1], f[2], f[3], u[0], u[1], u[2]}, seen + s * words,
                       allowed != nullptr ? allowed + s * words : nullptr, scratch + share * 2 * vocabulary, vocabulary,
                       drawn, logprob[s]);
            token[s] = static_cast<std::int32_t>(drawn);
            seen[s * words + drawn / 32] |= 1u << (drawn % 32);
            u[2] += 1;
        }
    });
}

}  // namespace tritune
