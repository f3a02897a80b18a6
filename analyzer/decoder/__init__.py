"""Decodes kernel names: family, library, operation, types, layout, tile and more.

:func:`kanalyze.decoder.decode.decode` decodes one name. Each library's naming scheme has a module of its own,
independent of the others. A field is set only if the name determines it with certainty.
"""
