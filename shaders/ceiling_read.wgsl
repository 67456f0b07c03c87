// ceiling_read: the best streaming read that a plain kernel reaches; what decode is measured against.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const CONTIGUOUS: bool = false; // a run to an invocation, or a run to a workgroup
const UNROLL: u32 = 4u;         // independent sums
// end constants

struct Params {
    run: u32, // vectors to an invocation, a multiple of UNROLL
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> sums: array<f32>;   // one an invocation, so that nothing is dead

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * LANES * params.run;
    var sum: array<vec4<f32>, UNROLL>;
    for (var u = 0u; u < UNROLL; u++) { //!unroll
        sum[u] = vec4<f32>();
    }
    for (var i = 0u; i < params.run; i += UNROLL) {
        for (var u = 0u; u < UNROLL; u++) { //!unroll
            sum[u] += source[first + select((i + u) * LANES + lane, lane * params.run + i + u, CONTIGUOUS)];
        }
    }
    var all = vec4<f32>();
    for (var u = 0u; u < UNROLL; u++) { //!unroll
        all += sum[u];
    }
    sums[group.x * LANES + lane] = all.x + all.y + all.z + all.w;
}
