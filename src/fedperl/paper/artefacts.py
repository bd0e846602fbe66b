"""Every table and figure by name: where the paper has it, the runs it is made from, and what makes it."""

from fedperl.paper import figures, tables
from fedperl.paper.content import Artefact
from fedperl.paper.parts import CLIENTS
from fedperl.paper.runs import FEW, PA, PARTICIPATION, POC, RAW, SSFL, TASKS

WITHOUT_OUTLIER = tuple(f"without outlier: {name}" for name in CLIENTS if not name.startswith("Local"))
POC_RUNS = tuple(f"{task}: {name}" for task in TASKS for name in POC)
FEW_RUNS = tuple(f"few: {name} {share}" for share in PARTICIPATION for name in FEW)
FEDERATED = ("Lower", SSFL, "FedMatch", "FedMatch+", "FedPerl raw T=2", "FedPerl T=2", "Upper")
TRAINING = ("FedMatch", "FedPerl raw T=1", *PA)
EVERY = (
    Artefact("table1", "Proof of concept", POC_RUNS, tables.table1, where="table 1"),
    Artefact("table2", "Standard scenario", tables.STANDARD, tables.table2, where="table 2; random peers in 3.3"),
    Artefact("table3", "Communities", tables.COMMITTEES, tables.table3, where="table 3"),
    Artefact("table4", "Clients", (*CLIENTS, *WITHOUT_OUTLIER), tables.table4, where="table 4"),
    Artefact("table5", "F1 by class", CLIENTS, tables.table5, where="table 5"),
    Artefact("table6", "AUROC by class", CLIENTS, tables.table6, where="table 6"),
    Artefact("table7", "AUPRC by class", CLIENTS, tables.table7, where="table 7"),
    Artefact("table8", "Unlabelled clients", tables.UNLABELLED, tables.table8, where="table 8"),
    Artefact("table9", "Unseen client", tables.STRANGER, tables.table9, unseen=True, where="table 9"),
    Artefact(
        "table10",
        "Dynamic policies",
        (*tables.POLICY_ROWS, *tables.SERVER_POLICY_ROWS),
        tables.table10,
        where="table 10",
    ),
    Artefact("figure2", "Data distribution", (SSFL, f"server: {SSFL}"), figures.figure2, where="figure 2"),
    Artefact("figure3", "Peers and communities", ("FedPerl raw T=1", *PA), figures.figure3, where="figure 3"),
    Artefact("early_late", "Peers in early and late rounds", ("FedPerl T=2",), figures.early_late, where="3.3, ours"),
    Artefact("figure4", "Accuracy during training", TRAINING, figures.figure4, where="figure 4"),
    Artefact("figure5", "Risk and coverage", CLIENTS, figures.figure5, where="figure 5"),
    Artefact("figure6", "Examples", (SSFL, "FedPerl T=2"), figures.figure6, where="figure 6"),
    Artefact("figure7", "Reliability on the unseen client", FEDERATED, figures.figure7, unseen=True, where="figure 7"),
    Artefact("figure8", "Few labelled clients", FEW_RUNS, figures.figure8, where="figure 8"),
    Artefact("figure9", "Reliability of federated models", FEDERATED, figures.figure9, where="figure 9"),
    Artefact(
        "reliability_local",
        "Reliability of local models",
        ("Local lower", "Local FixMatch", "Local upper"),
        figures.reliability_local,
        where="the appendix's figure",
    ),
    Artefact(
        "roc", "ROC curves by class", ("Lower", SSFL, "FedMatch", "FedPerl T=2", "Upper"), figures.roc, where="3.6"
    ),
    Artefact(
        "precision_recall",
        "Precision-recall curves by class",
        ("Lower", SSFL, "FedMatch", "FedPerl T=2", "Upper"),
        figures.precision_recall,
        where="3.6",
    ),
    Artefact(
        "time",
        "Training time",
        ("Lower", SSFL, "FedMatch", "FedMatch+", *RAW, *PA, "Upper"),
        figures.time,
        where="section 3, in the text",
    ),
)
ARTEFACTS = {one.name: one for one in EVERY}
