"""Who resembles whom and who may help whom: profiles, similarity, selectors, policies, committee (paper, 2.3)."""

from fedperl.peers.committee import AnonymizedPeer, RawPeers, committee, committee_mean
from fedperl.peers.policies import apply_policy
from fedperl.peers.profiles import profile
from fedperl.peers.selectors import random_peers, top_peers
from fedperl.peers.similarity import scale_profiles, similarity_matrix, similarity_rows

__all__ = [
    "AnonymizedPeer",
    "RawPeers",
    "apply_policy",
    "committee",
    "committee_mean",
    "profile",
    "random_peers",
    "scale_profiles",
    "similarity_matrix",
    "similarity_rows",
    "top_peers",
]
