from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.journal import fields, process
from chaosrunner.journal.journal import Connection, Entry, Field
from chaosrunner.timeline import rows
from tests.journal.patching import TestFailed, apply

CORDON = Field(path="/spec/unschedulable", previous=None, desired=True)


def node(**spec: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7", "annotations": {"a": "b"}},
        "spec": spec,
    }


def entry(field: Field = CORDON, ident: str = "e1") -> Entry:
    return Entry(
        entry=ident,
        run="r1",
        drill="d1",
        fault="cordon",
        target=rows.Target(kind="Node", name="n1", uid="u1"),
        resource="/api/v1/nodes/n1",
        fields=(field,),
        connection=Connection(kubeconfig="/k", context="c"),
        owner=process.current(),
        wall=1.0,
    )


def managed(obj: dict[str, Any], manager: str) -> dict[str, Any]:
    obj["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]
    return obj


specs = st.fixed_dictionaries({}, optional={"unschedulable": st.booleans(), "podCIDR": st.just("10.0.0.0/24")})
annotations = st.none() | st.dictionaries(st.sampled_from(["a", "b/c", "d~e"]), st.text(max_size=3), min_size=1)


@given(spec=specs, noted=annotations)
def test_undo_gives_back_exactly_the_object_that_was(spec: dict[str, Any], noted: dict[str, str] | None) -> None:
    before = node(**spec)
    if noted is None:
        del before["metadata"]["annotations"]
    else:
        before["metadata"]["annotations"] = noted
    desired = not spec.get("unschedulable", False)
    made = entry(Field(path="/spec/unschedulable", previous=spec.get("unschedulable"), desired=desired))
    during = apply(before, fields.change(before, made))
    assert during["spec"]["unschedulable"] is desired
    decision = fields.undo(during, made, "applied")
    assert decision.state == "undone"
    after = apply(during, decision.operations)
    assert after == before
    assert fields.undo(after, made, "undone") == fields.Decision(state="already_undone")


def test_change_and_annotation_are_one_patch_that_applies_to_the_state_read_or_to_nothing() -> None:
    read = node()
    operations = fields.change(read, entry())
    changed = apply(read, operations)
    (note,) = fields.notes_of(changed)
    assert (note.run, note.entry, note.fields) == ("r1", "e1", (CORDON,))
    newer = copy.deepcopy(read)
    newer["metadata"]["resourceVersion"] = "8"
    with pytest.raises(TestFailed):
        apply(newer, operations)
    recreated = copy.deepcopy(read)
    recreated["metadata"]["uid"] = "u2"
    with pytest.raises(TestFailed):
        apply(recreated, operations)


def test_an_annotation_alone_tells_the_whole_entry() -> None:
    made = entry()
    (note,) = fields.notes_of(apply(node(), fields.change(node(), made)))
    assert fields.entry(note, made.target, made.resource, made.connection) == made


def test_a_node_that_an_operator_cordoned_between_intent_and_call_stays_cordoned() -> None:
    # The call was never sent (killed before it); the operator's own cordon has no annotation of ours.
    decision = fields.undo(node(unschedulable=True), entry(), "intent")
    assert (decision.state, decision.operations) == ("not_applied", [])


def test_a_change_of_ours_that_somebody_undid_is_left_and_only_the_annotation_goes() -> None:
    during = apply(node(), fields.change(node(), entry()))
    del during["spec"]["unschedulable"]
    decision = fields.undo(during, entry(), "applied")
    assert decision.state == "already_undone"
    assert apply(during, decision.operations) == node()


def test_a_field_that_somebody_wrote_again_is_left_as_they_want_it() -> None:
    # Uncordoned and cordoned again by a person: the value is ours, the writer is not.
    during = managed(apply(node(), fields.change(node(), entry())), "kubectl-cordon")
    decision = fields.undo(during, entry(), "applied")
    assert decision.state == "changed_by_others"
    assert "kubectl-cordon" in (decision.detail or "")
    after = apply(during, decision.operations)
    assert after["spec"] == {"unschedulable": True}
    assert fields.notes_of(after) == []


def test_a_stripped_annotation_is_replaced_by_the_servers_word_on_who_wrote_the_field() -> None:
    stripped = node(unschedulable=True)
    assert fields.undo(stripped, entry(), "applied").state == "changed_by_others"
    ours = managed(stripped, fields.MANAGER)
    decision = fields.undo(ours, entry(), "applied")
    assert decision.state == "undone"
    assert apply(ours, decision.operations)["spec"] == {}


def test_other_fields_that_changed_meanwhile_are_kept() -> None:
    during = apply(node(), fields.change(node(), entry()))
    during["metadata"]["labels"] = {"pool": "gpu"}
    during["spec"]["taints"] = [{"key": "x", "effect": "NoSchedule"}]
    after = apply(during, fields.undo(during, entry(), "applied").operations)
    assert after["metadata"]["labels"] == {"pool": "gpu"}
    assert after["spec"] == {"taints": [{"key": "x", "effect": "NoSchedule"}]}


def test_an_object_that_was_made_anew_has_nothing_to_undo() -> None:
    # chaos-mesh/chaos-mesh#4827: the target vanished; that is an undo, not an endless failure.
    anew = node(unschedulable=True)
    anew["metadata"]["uid"] = "u2"
    decision = fields.undo(anew, entry(), "applied")
    assert (decision.state, decision.operations) == ("already_undone", [])
    assert (decision.detail or "").startswith("undone_by_removal")


def test_an_annotation_that_is_not_ours_to_read_is_no_note() -> None:
    strange = node()
    strange["metadata"]["annotations"] = {fields.ANNOTATION + "e1": "{not json"}
    assert fields.notes_of(strange) == []


def test_the_command_for_a_person_names_the_cluster_and_the_previous_value() -> None:
    text = fields.command(entry())
    assert text.startswith("kubectl --kubeconfig /k --context c patch node n1 --type=merge -p ")
    merge = json.loads(text.split("'")[1])
    assert merge == {"metadata": {"annotations": {fields.annotation(entry()): None}}, "spec": {"unschedulable": None}}
