"""Who resembles whom and who may help whom: profiles, similarity, selectors, policies, committee (paper, 2.3)."""

from fedperl.peers.adaptive import committee_sizes
from fedperl.peers.committee import AnonymizedPeer, RawPeers, committee, committee_mean
from fedperl.peers.policies import apply_policy, scale_scores
from fedperl.peers.predictions import embedding, noise_image, prediction_similarity
from fedperl.peers.profiles import profile
from fedperl.peers.selectors import random_peers, top_peers
from fedperl.peers.similarity import scale_profiles, similarity_matrix, similarity_rows

__all__ = [
    "AnonymizedPeer",
    "RawPeers",
    "apply_policy",
    "committee",
    "committee_mean",
    "committee_sizes",
    "embedding",
    "noise_image",
    "prediction_similarity",
    "profile",
    "random_peers",
    "scale_profiles",
    "scale_scores",
    "similarity_matrix",
    "similarity_rows",
    "top_peers",
]
