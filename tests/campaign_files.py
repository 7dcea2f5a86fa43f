"""Small whole files for the campaign to damage, by name; the name's start says what they are good for."""

from __future__ import annotations

FSDP = """# commcc: {"fx_text": 1}
# commcc: {"groups": {"0": {"size": 2, "ranks": [0, 1], "description": "dp_shard"}}}
class GraphModule(torch.nn.Module):
    def forward(
        self,
        primals_1: "f32[4, 8][8, 1]cuda:0",
        primals_2: "f32[4, 8][8, 1]cuda:0",
        tangents_1: "f32[8, 8][8, 1]cuda:0",
    ):
        # Annotation: {'module_fqn': 'layers.0'} File: model.py:3 in forward, code: x = self.w(x)
        ag: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(primals_1, 2, '0')
        w: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(ag);  ag = None
        mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(tangents_1, w);  w = None
        # Annotation: {'module_fqn': 'layers.1'} File: model.py:4 in forward, code: x = self.v(x)
        ag_1: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(primals_2, 2, '0')
        w_1: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(ag_1);  ag_1 = None
        mm_1: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(mm, w_1)
        rs: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm, 'avg', 2, '0')
        rw: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(rs);  rs = None
        rs_1: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm_1, 'avg', 2, '0')
        rw_1: "f32[4, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(rs_1);  rs_1 = None
        return (mm_1, rw, rw_1)
"""
TOKENS = """# commcc: {"fx_text": 1}
# commcc: {"groups": {"3": {"size": 2, "ranks": [0, 1], "description": "ep"}}}
# commcc: {"header": {"symbols": {"u0": [0, 64, 32], "u1": [0, 64, 32]}}}
class GraphModule(torch.nn.Module):
    def forward(self, counts: "i64[8][1]cuda:0", rows: "bf16[16, 8][8, 1]cuda:0", buffer: "f32[8][1]cuda:0"):
        a2a: "i64[8][1]cuda:0" = torch.ops._c10d_functional.all_to_all_single.default(counts, [4, 4], [4, 4], '3')
        wait: "i64[8][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(a2a)
        host: "i64[8][1]cpu" = torch.ops.aten._to_copy.default(wait, device = device(type='cpu'))
        select: "i64[][]cpu" = torch.ops.aten.select.int(host, 0, 0)
        n: "Sym(u0)" = torch.ops.aten._local_scalar_dense.default(select)
        select_1: "i64[][]cpu" = torch.ops.aten.select.int(host, 0, 1)
        n_1: "Sym(u1)" = torch.ops.aten._local_scalar_dense.default(select_1)
        a2a_1: "bf16[u0 + u1, 8]" = torch.ops._c10d_functional.all_to_all_single.default(rows, [n, n_1], [8, 8], '3')
        got: "bf16[u0 + u1, 8]" = torch.ops._c10d_functional.wait_tensor.default(a2a_1)
        add_: "f32[8][1]cuda:0" = torch.ops.aten.add_.Tensor(buffer, 1)
        rand: "f32[8][1]cuda:0" = torch.ops.aten.rand_like.default(add_)
        return (got, add_, rand)
"""
BRANCH = """class GraphModule(torch.nn.Module):
    def forward(self, p: "b8[]", x: "f32[8]"):
        true_graph_0 = self.true_graph_0
        false_graph_0 = self.false_graph_0
        cond = torch.ops.higher_order.cond(p, true_graph_0, false_graph_0, (x,))
        getitem: "f32[8]" = cond[0]
        return (getitem,)

    class true_graph_0(torch.nn.Module):
        def forward(self, y: "f32[8]"):
            all_reduce: "f32[8]" = torch.ops._c10d_functional.all_reduce.default(y, 'sum', '0')
            wait: "f32[8]" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
            return (wait,)

    class false_graph_0(torch.nn.Module):
        def forward(self, y: "f32[8]"):
            neg: "f32[8]" = torch.ops.aten.neg.default(y)
            return (neg,)
"""
GRAPHS = {"graph_fsdp.fx.txt": FSDP, "graph_tokens.fx.txt": TOKENS, "graph_branch.fx.txt": BRANCH}

FILES = {
    "pipeline.yaml": "passes:\n- tag\n- bucket: {bucket_cap_mb: 25, groups: [primary]}\n- reorder\n",
    "config.yaml": (
        "baseline: baseline.yaml\nrules:\n  wait-after-launch: off\n  peak-memory: {severity: error, max: 60 GiB}\n"
        "  collective-count: {max: {all_gather: 100, fsdp: 250}}\n"
        'overrides:\n- paths: "*_moe_*"\n  rules: {peak-memory: {max: 70 GiB}}\n'
    ),
    "commcc.yaml": "cost: h100\nhints: {u*: 32}\npipeline: {preset: auto}\noptions:\n  bucket: {bucket_cap_mb: 50}\n",
    "table.yaml": (
        "table: 1\nbytes: input\ncollectives:\n- kind: all_gather\n  group_size: 2\n  dtype: float32\n"
        "  us: {1 KiB: 10.5, 1 MiB: 85.2, 67108864: 1240.5}\n- {kind: reduce_scatter, group_size: 2, us: {1 KiB: 12}}\n"
    ),
    "profile.yaml": (
        'profile: 1\nops:\n- op: aten.mm\n  inputs: ["float32[8, 8]", "float32[8, 8]"]\n  median_us: 812.4\n'
        "collectives:\n- {kind: all_gather, group_size: 2, input_bytes: 128, dtype: float32, us: 143.2}\n"
    ),
    "profile.json": (
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5,'
        ' "args": {"External id": 3, "Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}},'
        ' {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2.0, "dur": 3.5,'
        ' "args": {"External id": 3, "correlation": 1, "stream": 7}}]}'
    ),
    "hiding.yaml": "ag: [mm]\nrs: [mm_1]\n",
}
