// zero: words = 0.
//
// words u32 [n]: any buffer as 32-bit words. Work: one thread a word, striding over the grid.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("n: u32") }}
{{ binding("words", "array<u32>") }}

{{ prelude.main() }}
    for (var i = wg.x * {{ workgroup_size }}u + li; i < params.n; i += grid.x * {{ workgroup_size }}u) {
        words[i] = 0u;
    }
}
