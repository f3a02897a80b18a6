"""Decodes kernel names: family, library, operation, types, layout, tile and more.

:func:`kanalyze.decoder.decode.decode` decodes one name. Each naming scheme has a decoder of its own, independent of the
others; libraries of one subject share a module. A field is set only if the name determines it with certainty.
"""
