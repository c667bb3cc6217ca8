"""The few words that all templates share, so that a small vocabulary holds them whole."""

NAMES = "Ada Boris Chen Dalia Emeka Freya Goro Hana Ivan Jomo Kira Leila Marta Nils Omar Priya".split()
THINGS = (
    "apples books candles drums eggs flowers hats jars kites lamps maps notes oranges pencils shells stamps".split()
)
PLACES = "market library harbour station garden school bakery museum".split()
COLOURS = "red blue green black white brown silver golden".split()
OBJECTS = "box door lamp boat clock key bell cart chair coat drum flag gate kite map ring".split()


def singular(thing: str) -> str:
    """One of `thing`."""
    return "box" if thing == "boxes" else thing.removesuffix("s")
