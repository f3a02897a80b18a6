"""Decodes kernel names: family, library, operation, types, layout, tile and more.

:func:`kanalyze.decoder.decode.decode` decodes one name. Each library's way of naming has a module of its own, which
knows nothing of the others. A field is set only where the name certainly says it.
"""
