"""The tables' numbers against naive ones from the predictions behind them."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from fedperl.paper import tables
from fedperl.paper.content import NONE, Row, TableContent
from fedperl.paper.printed import printed
from tests.paper.made import CLASSES, Answers, answers, found, ten, trained


def row(content: TableContent, label: str) -> Row:
    return next(one for one in content.rows if one.label == label)


def cells(content: TableContent, label: str) -> dict[str, str]:
    return dict(zip(content.columns, row(content, label).ours, strict=True))


def naive_f1(one: Answers) -> float:
    return float(f1_score(one.truth, one.probabilities.argmax(1), average="weighted", zero_division=0))


def test_standard_results_are_means_over_clients_of_means_over_seeds() -> None:
    seeds, lower = (ten(1), ten(2)), ten(3)
    made = found(trained("Local lower", lower, lower), trained("SSFL", *seeds))
    content = tables.table2(made)
    by_client = np.mean([[naive_f1(one) for one in seed.values()] for seed in seeds], axis=0)
    wanted = f"{by_client.mean():.3f} ({np.median(by_client):.3f}) ± {by_client.std():.3f}"
    ours = cells(content, "SSFL")
    assert ours["F1"] == wanted
    for name, score in (("precision", precision_score), ("recall", recall_score)):
        values = [
            [
                score(one.truth, one.probabilities.argmax(1), average="weighted", zero_division=0)
                for one in seed.values()
            ]
            for seed in seeds
        ]
        assert ours[name].startswith(f"{np.mean(values):.3f} (")
    base = np.mean([naive_f1(one) for one in lower.values()])
    assert float(ours["RI %"]) == pytest.approx(100 * (by_client.mean() - base) / base, abs=0.005)
    # 300 bytes down in 2 client-rounds, 20 bytes for the 2 validations of one model of 10: 15 models, not 1.
    assert ours["AC %"] == f"{100 * (300 / (10 * 2) - 1):.0f}"
    f1, precision, recall = "0.734 (0.725) ± 0.065", "0.744 (0.730) ± 0.064", "0.739 (0.728) ± 0.061"
    assert row(content, "SSFL").paper == (f1, precision, recall, "13.44", "0", NONE)


def test_the_difference_to_ssfl_is_paired_by_client() -> None:
    ours, theirs = ten(1), ten(2)
    content = tables.table2(found(trained("SSFL", theirs), trained("FedPerl T=2", ours)))
    mean = np.mean([naive_f1(ours[n]) - naive_f1(theirs[n]) for n in ours])
    assert cells(content, "FedPerl T=2")[content.columns[-1]].startswith(f"{mean:+.3f} [")
    assert cells(content, "SSFL")[content.columns[-1]] == NONE


def test_runs_on_another_partition_are_not_paired() -> None:
    content = tables.table2(found(trained("SSFL", ten(1)), trained("Upper", ten(1), partition="another")))
    assert cells(content, "Upper")[content.columns[-1]] == NONE


def test_communities_are_means_over_their_clients() -> None:
    clients = ten(4)
    content = tables.table3(found(trained("FedPerl T=2", clients)))
    f1 = [naive_f1(one) for one in clients.values()]
    assert content.columns == ("ISIC19 (M=5)", "HAM10000 (M=3)", "client 8 (M=1)", "client 9 (M=1)")
    only = content.rows[0]
    assert only.label == "T=2 (FedPerl T=2)"
    assert only.ours == tuple(f"{v:.3f}" for v in (np.mean(f1[:5]), np.mean(f1[5:8]), f1[8], f1[9]))
    assert only.paper == ("0.736", "0.833", "0.567", "0.717")


def test_both_meanings_of_without_client_8() -> None:
    clients, anew = ten(5), {n: one for n, one in ten(6).items() if n != 8}
    content = tables.table4(found(trained("SSFL", clients), trained("without outlier: SSFL", anew)))
    ours = cells(content, "SSFL")
    f1 = np.array([naive_f1(one) for one in clients.values()])
    new = np.array([naive_f1(one) for one in anew.values()])
    others = np.delete(f1, 8)
    assert ours["others, same model"] == f"{others.mean():.3f} ± {others.std():.3f}"
    assert ours["others, trained without 8"] == f"{new.mean():.3f} ± {new.std():.3f}"
    assert ours["gain of the others"] == f"{100 * (new.mean() - others.mean()):+.1f}"
    assert ours["Diff. %"] == f"{100 * (new.mean() - f1.mean()):+.1f}"
    paper = dict(zip(content.columns, row(content, "SSFL").paper, strict=True))
    assert (paper["others, same model"], paper["others, trained without 8"]) == (NONE, "0.764 ± 0.045")


def test_the_paper_left_fedmatch_as_it_was() -> None:
    content = tables.table4(found(trained("FedMatch", ten(5))))
    paper = dict(zip(content.columns, row(content, "FedMatch").paper, strict=True))
    assert (paper["others, same model"], paper["others, trained without 8"]) == ("0.760 ± 0.046", NONE)


def test_without_the_papers_ten_clients_its_numbers_by_client_are_not_shown() -> None:
    clients = {n: answers(n) for n in range(4)}
    made = found(trained("SSFL", clients, sources=("A", "A", "B", "C")))
    for content in (tables.table3(made), tables.table4(made)):
        assert content.columns[0].startswith(("A", "0"))
        assert content.rows[0].paper == ()


def test_classes_are_averaged_over_the_clients_that_have_them() -> None:
    clients = ten(7)
    made = found(trained("SSFL", clients))
    f1, pooled = tables.table5(made), cells(tables.table5(made), "SSFL, pooled")
    roc, pr = cells(tables.table6(made), "SSFL, from labels"), cells(tables.table7(made), "SSFL, from scores")
    scored = cells(tables.table6(made), "SSFL, from scores")
    every = [np.concatenate([getattr(one, name) for one in clients.values()]) for name in ("truth", "probabilities")]
    for label, name in enumerate(CLASSES):
        having = [one for one in clients.values() if (one.truth == label).any()]
        assert len(having) == (9 if label in (5, 6) else 10)
        truths = [one.truth == label for one in having]
        called = [one.probabilities.argmax(1) == label for one in having]
        values = [f1_score(t, c, zero_division=0) for t, c in zip(truths, called, strict=True)]
        assert float(cells(f1, "SSFL")[name]) == pytest.approx(np.mean(values), abs=6e-4)
        assert float(pooled[name]) == pytest.approx(f1_score(every[0] == label, every[1].argmax(1) == label), abs=6e-4)
        hard = [(t[t].size and (c[t].mean() + (~c[~t]).mean()) / 2) for t, c in zip(truths, called, strict=True)]
        assert float(roc[name]) == pytest.approx(np.mean(hard), abs=6e-4)
        soft = [roc_auc_score(t, one.probabilities[:, label]) for t, one in zip(truths, having, strict=True)]
        assert float(scored[name]) == pytest.approx(np.mean(soft), abs=0.01)  # from counts in 200 bins
        area = [average_precision_score(t, one.probabilities[:, label]) for t, one in zip(truths, having, strict=True)]
        assert float(pr[name]) == pytest.approx(np.mean(area), abs=0.02)
    assert row(f1, "SSFL").paper[0] == "0.565"


def test_a_class_that_nobody_has_is_left_empty() -> None:
    made = found(trained("SSFL", {0: answers(1, known=[0, 1]), 1: answers(2, known=[0, 1])}, sources=("A", "A")))
    for content in (tables.table5(made), tables.table6(made), tables.table7(made)):
        assert row(content, content.rows[0].label).ours[2:] == (NONE,) * 6


def test_policies_tell_how_many_peers_were_kept() -> None:
    clients = ten(8)
    made = found(
        trained("FedPerl T=2", ten(9)), trained("gated similarity 95", clients), trained("server: validation", clients)
    )
    content = tables.table10(made)
    ours = cells(content, "gated similarity 95")
    assert ours["peers kept"] == "1.50"  # 2 times none, 6 times two
    assert ours["Avg"] == f"{np.mean([naive_f1(one) for one in clients.values()]):.3f}"
    paper = dict(zip(content.columns, row(content, "gated similarity 95").paper, strict=True))
    assert (paper["8"], paper["Avg"]) == ("0.618", "0.757")
    assert [one.setting for one in content.rows] == ["labels at clients"] * 2 + ["labels at the server"]


def test_unlabelled_clients() -> None:
    content = tables.table8(found(trained("server: SSFL", ten(1)), trained("server: FedPerl T=2", ten(2))))
    assert [one.label for one in content.rows] == ["SSFL", "FedPerl T=2"]
    assert row(content, "FedPerl T=2").paper[0] == "0.645 (0.662) ± 0.119"


def test_the_unseen_client_by_both_readings() -> None:
    def numbers(f1: float) -> dict[str, float]:
        return {f"{s}_{m}": f1 for s in ("malignant", "benign") for m in ("f1", "precision", "recall")}

    run = trained("SSFL", ten(1), ten(2))
    reads = [
        {"argmax_then_group": numbers(0.1), "sum_then_threshold": numbers(0.3), "auroc": 0.7, "malignant": 5},
        {"argmax_then_group": numbers(0.3), "sum_then_threshold": numbers(0.4), "auroc": 0.8, "malignant": 5},
    ]
    unseen = tuple({"images": 100, "malignancy": one} for one in reads)
    content = tables.table9(found(type(run)(run.name, run.seeds, unseen)))
    assert cells(content, "SSFL, argmax")["malignant f1"] == "0.200"
    assert cells(content, "SSFL, sum")["malignant f1"] == "0.350"
    assert cells(content, "SSFL, sum")["AUROC"] == "0.750"
    assert row(content, "SSFL, argmax").paper[0] == "0.161"
    assert row(content, "SSFL, sum").paper == ()


def test_the_proof_of_concept_is_accuracy_over_seeds() -> None:
    seeds = ten(1), ten(2)
    content = tables.table1(found(trained("cifar10_iid: FedPerl", *seeds)))
    accuracy = [
        100 * np.mean([(one.probabilities.argmax(1) == one.truth).mean() for one in seed.values()]) for seed in seeds
    ]
    ours = cells(content, "FedPerl")
    assert ours["CIFAR10 IID"] == f"{np.mean(accuracy):.2f} ± {np.std(accuracy, ddof=1):.2f}"
    assert ours["FMNIST NonIID"] == NONE
    assert row(content, "FedPerl").paper == ("53.98 ± 0.06", "53.50 ± 0.71", "82.75 ± 0.44")
    assert row(content, "FedAvg-SL").paper[2] == NONE


def test_every_printed_row_has_a_run_that_is_planned() -> None:
    from fedperl.paper.runs import find_scale, paper_runs

    planned = set(paper_runs(find_scale("full")))
    rows = {run for name in [f"table{n}" for n in range(2, 11)] + ["figure8"] for run in printed(name)}
    assert rows <= planned
    assert {f"cifar10_iid: {run}" for run in printed("table1") if "printed there" not in run} <= planned


def test_a_model_that_says_one_class_is_named() -> None:
    one = answers(1)
    flat = Answers(one.truth, np.tile(np.eye(8)[1] * 0.9 + 0.0125, (len(one.truth), 1)))
    note = "says one class of every image"
    content = tables.table8(found(trained("server: SSFL", dict.fromkeys(range(10), flat))))
    assert any(note in line and line.startswith("SSFL:") for line in content.notes)
    assert not any(note in line for line in tables.table8(found(trained("server: SSFL", ten(1)))).notes)


def test_classes_of_several_seeds_are_averaged_not_pooled() -> None:
    first, second = ({0: answers(seed), 1: answers(seed + 1)} for seed in (1, 5))
    content = tables.table5(found(trained("SSFL", first, second, sources=("A", "A"))))
    label = 3
    values = [
        np.mean(
            [f1_score(seed[n].truth == label, seed[n].probabilities.argmax(1) == label) for seed in (first, second)]
        )
        for n in (0, 1)
    ]
    assert float(cells(content, "SSFL")[CLASSES[label]]) == pytest.approx(np.mean(values), abs=6e-4)


def test_where_images_stream_in_the_clients_own_models_count() -> None:
    run = trained("fmnist_noniid: FedPerl", ten(1), local={"accuracy": 0.5, "clients": 10})
    assert cells(tables.table1(found(run)), "FedPerl")["FMNIST NonIID"] == "50.00"
