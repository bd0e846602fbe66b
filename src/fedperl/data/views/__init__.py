"""Weak and strong views of images: drawn first, for all images at once, then applied on the device they are on.

An image's view depends on its own row of the draw alone, so views made in chunks are the views made together.
"""

from fedperl.data.views.images import to_float
from fedperl.data.views.strong import (
    STRONG_RECIPES,
    Choice,
    Operation,
    StrongDraw,
    StrongRecipe,
    apply_strong,
    draw_strong,
)
from fedperl.data.views.weak import WEAK_RECIPES, WeakDraw, WeakRecipe, apply_weak, draw_weak

__all__ = [
    "STRONG_RECIPES",
    "WEAK_RECIPES",
    "Choice",
    "Operation",
    "StrongDraw",
    "StrongRecipe",
    "WeakDraw",
    "WeakRecipe",
    "apply_strong",
    "apply_weak",
    "draw_strong",
    "draw_weak",
    "to_float",
]
