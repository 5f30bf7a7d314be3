"""Names of layers from calls of modules, by hand."""

from collections.abc import Sequence

from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.layers import module_layers
from tests.trace_building import MAIN, Thread, TraceBuilder

ENGINE: Thread = (100, 101)
Call = tuple[str, Sequence["Call | str"]]


def call(made: TraceBuilder, tree: Call | str, start_ns: int, thread: Thread = MAIN) -> int:
    """Calls of modules one in another, one after another; when the outermost ends."""
    name, inner = (tree, ()) if isinstance(tree, str) else tree
    end_ns = start_ns + 1
    for one in inner:
        end_ns = call(made, one, end_ns, thread)
    end_ns += 1
    kind = SpanKind.MODULE
    made.span(f"nn.Module: {name}", start_ns, end_ns - start_ns, kind=kind, thread=thread)
    return end_ns + 1


def layers(*trees: Call | str, engine: Call | str | None = None) -> list[str]:
    """The layer of each call, in order of start."""
    made, start_ns = TraceBuilder(), 0
    for tree in trees:
        start_ns = call(made, tree, start_ns)
    if engine is not None:
        call(made, engine, start_ns, ENGINE)
    names, column = module_layers(made.build())
    assert (column >= 0).all()
    return [names[index] for index in column.tolist()]


def test_decoder_layers_come_out_by_their_path_and_what_is_beside_them_by_its_own() -> None:
    model: Call = (
        "Model_0",
        [
            "Embedding_0",
            ("Layer_0", ["Norm_0", ("MLP_0", ["Linear_0", "Linear_1"]), "Norm_1"]),
            ("Layer_1", ["Norm_2", ("MLP_1", ["Linear_2", "Linear_3"]), "Norm_3"]),
            "Norm_4",
        ],
    )
    assert layers(model) == [
        "Model_0",
        "Model_0/Embedding_0",
        *["Model_0/Layer_0"] * 6,
        *["Model_0/Layer_1"] * 6,
        "Model_0/Norm_4",
    ]


def test_blocks_come_out_of_stages_also_of_a_stage_with_one_block() -> None:
    model: Call = (
        "ResNet_0",
        [
            ("Sequential_0", [("Block_0", ["Conv2d_0", "Conv2d_1"]), ("Block_1", ["Conv2d_2"])]),
            ("Sequential_1", [("Block_2", ["Conv2d_3"])]),
        ],
    )
    assert layers(model) == [
        "ResNet_0",
        "ResNet_0/Sequential_0",
        *["ResNet_0/Sequential_0/Block_0"] * 3,
        *["ResNet_0/Sequential_0/Block_1"] * 2,
        "ResNet_0/Sequential_1",
        *["ResNet_0/Sequential_1/Block_2"] * 2,
    ]


def test_one_instance_called_twice_is_not_several() -> None:
    assert layers(("Net_0", [("Block_0", ["Linear_0"]), ("Block_0", ["Linear_0"])])) == [
        "Net_0",
        *["Net_0/Block_0", "Net_0/Block_0/Linear_0"] * 2,
    ]


def test_a_block_computed_again_on_another_thread_is_the_same_layer() -> None:
    block: Call = ("Sequential_0", [("Block_0", ["Linear_0"])])
    model: Call = ("Net_0", [block, ("Sequential_1", [("Block_1", ["Linear_1"])])])
    beside: Call = ("Sequential_2", [("Block_2", []), ("Block_3", [])])
    assert layers(("Net_0", [*model[1], beside]), engine=block)[-3:] == [
        "Net_0/Sequential_0",
        *["Net_0/Sequential_0/Block_0"] * 2,
    ]


def test_a_module_with_several_places_stays_where_it_is_called() -> None:
    model: Call = ("Net_0", [("Block_0", ["Rotary_0"]), ("Block_1", ["Rotary_0"])])
    assert layers(model, "Rotary_0") == [
        "Net_0",
        *["Net_0/Block_0"] * 2,
        *["Net_0/Block_1"] * 2,
        "Rotary_0",
    ]


def test_without_modules_there_are_no_layers() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 5, kind=SpanKind.OP)
    names, column = module_layers(made.build())
    assert names == ()
    assert column.tolist() == [-1]


def test_calls_nested_absurdly_deep_have_no_layer() -> None:
    made = TraceBuilder()
    for depth in range(50):
        made.span(f"nn.Module: M{depth}_0", depth, 200 - 2 * depth, kind=SpanKind.MODULE)
    _, column = module_layers(made.build())
    assert (column[:32] >= 0).all()
    assert (column[32:] == -1).all()


def test_names_of_layers_are_bounded_however_long_and_deep_modules_are() -> None:
    """31 modules of long names around 2,000: 31 x 10,000 characters in each path."""
    made = TraceBuilder()
    for depth in range(31):
        name = f"nn.Module: Outer{'x' * 10_000}_{depth}"
        made.span(name, depth, 100_000 - 2 * depth, kind=SpanKind.MODULE)
    for at in range(2000):
        made.span(f"nn.Module: Leaf{at}", 100 + 10 * at, 5, kind=SpanKind.MODULE)
    names, column = module_layers(made.build())
    assert len(names) == len(set(column.tolist())) == 31 + 2000
    assert max(map(len, names)) < 250
