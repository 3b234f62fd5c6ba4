{#
The head for at most `rows` rows and one shard of the table: out[t, first_row + v] = Σ_d x[t, d] * shard[v, d].

x f32 [T, D]; shard [N, D] in `format` f32, f16 or bf16; out f32 [T, V], =. D is a multiple of 4.
Work as in linear_gemv.wgsl: `lanes` threads share `tile` outputs and take every lanes-th unit of their rows, `unroll` at a
time. A unit is four elements or, of 16 bits where D is a multiple of 8 (`wide`), eight. Grid: ceil(N / (threads / lanes * tile)).
#}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "N: u32", "D: u32", "V: u32", "first_row: u32") }}
{% set packed = "vec4<f32>" if format == "f32" else "vec4<u32>" if wide else "vec2<u32>" %}
{% set vectors = 2 if wide else 1 %}
{{ binding("x", "array<vec4<f32>>") }}
{{ binding("shard", "array<" ~ packed ~ ">") }}
{{ binding("out", "array<f32>") }}
{% set groups = threads // lanes %}
{% set outputs = groups * tile %}
{% set round_rows = [rows, [12288 // (threads * tile * 4), 1] | max] | min %}
{{ prelude.functions() }}
var<workgroup> partial: array<f32, {{ round_rows * threads * tile }}>;
{% macro load_units() %}
{% for r in range(tile) %}
{% for u in range(unroll) %}
    word{{ r }}_{{ u }} = shard[row{{ r }} + {{ "at + %du" % (u * lanes) if whole else "min(at + %du, units - 1u)" % (u * lanes) }}];
{% endfor %}
{% endfor %}
{% endmacro %}
{{ prelude.main(threads) }}
    let first = workgroup_1d(wg, grid) * {{ outputs }}u;
    let lane = li % {{ lanes }}u;
    let group = li / {{ lanes }}u;
    let units = params.D / {{ 4 * vectors }}u;
{% for r in range(tile) %}
    let row{{ r }} = min(first + group * {{ tile }}u + {{ r }}u, params.N - 1u) * units;
{% for u in range(unroll) %}
    var word{{ r }}_{{ u }}: {{ packed }};
{% endfor %}
{% for t in range(rows) %}
    var acc{{ t }}_{{ r }} = 0.0;
{% endfor %}
{% endfor %}
{% for t in range(rows) %}
    let x{{ t }} = min({{ t }}u, params.T - 1u) * params.D / 4u;
{% endfor %}
    for (var at = lane; at < units; at += {{ lanes * unroll }}u) {
{{ load_units() }}
{% for u in range(unroll) %}
        {{ "{" if whole else "if (at + %du < units) {" % (u * lanes) }}
        let unit = at + {{ u * lanes }}u;
{% for r in range(tile) %}
{% if format == "f32" %}
        let w{{ r }}_0 = word{{ r }}_{{ u }};
{% else %}
{% for h in range(vectors) %}
        let w{{ r }}_{{ h }} = vec4<f32>(load_{{ format }}x2(word{{ r }}_{{ u }}.{{ "xz"[h] }}), load_{{ format }}x2(word{{ r }}_{{ u }}.{{ "yw"[h] }}));
{% endfor %}
{% endif %}
{% endfor %}
{% for t in range(rows) %}
{% for h in range(vectors) %}
        let v{{ t }}_{{ h }} = x[x{{ t }} + unit * {{ vectors }}u + {{ h }}u];
{% for r in range(tile) %}
        acc{{ t }}_{{ r }} += dot(w{{ r }}_{{ h }}, v{{ t }}_{{ h }});
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% endfor %}
    }
{% for start in range(0, rows, round_rows) %}
{% set count = [round_rows, rows - start] | min %}
{% if start %}
    workgroupBarrier();
{% endif %}
{% for t in range(count) %}
{% for r in range(tile) %}
    partial[{{ (t * tile + r) * threads }}u + li] = acc{{ start + t }}_{{ r }};
{% endfor %}
{% endfor %}
    workgroupBarrier();
    for (var i = li; i < {{ count * outputs }}u; i += {{ threads }}u) {
        let t = {{ start }}u + i / {{ outputs }}u;
        let o = i % {{ outputs }}u;
        if (t >= params.T || first + o >= params.N) { continue; }
        let from_lane = ((i / {{ outputs }}u) * {{ tile }}u + o % {{ tile }}u) * {{ threads }}u + (o / {{ tile }}u) * {{ lanes }}u;
        var total = 0.0;
        for (var l = 0u; l < {{ lanes }}u; l++) { total += partial[from_lane + l]; }
        out[t * params.V + params.first_row + first + o] = total;
    }
{% endfor %}
}
