"""Classes of images that nobody has labelled, or none where the model is not sure: what `fedperl predict` does."""

from fedperl.predicting.abstaining import Abstention, abstention, validation_sums
from fedperl.predicting.answers import Prediction, check_csv, predict_images, summary, write_csv
from fedperl.predicting.images import Entry, list_images, read_image
from fedperl.predicting.model import Predictor, check_fit, fit_of, open_predictor

__all__ = [
    "Abstention",
    "Entry",
    "Prediction",
    "Predictor",
    "abstention",
    "check_csv",
    "check_fit",
    "fit_of",
    "list_images",
    "open_predictor",
    "predict_images",
    "read_image",
    "summary",
    "validation_sums",
    "write_csv",
]
