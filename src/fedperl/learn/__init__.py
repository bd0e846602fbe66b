"""One client alone: networks, objectives, pseudo labels, the local round."""
