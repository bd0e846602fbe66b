"""dermsim: drawn dermatoscopic lesions, eight classes in five acquisition styles, made from numbers alone.

It stands in for the published archives where real images cannot be had or shipped.
"""

from fedperl.data.dermsim.cues import CLASSES
from fedperl.data.dermsim.draw import draw
from fedperl.data.dermsim.sheet import contact_sheet
from fedperl.data.dermsim.styles import STYLES

__all__ = ["CLASSES", "STYLES", "contact_sheet", "draw"]
