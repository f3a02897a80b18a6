"""What a finding comes to in figures: at stake, and what its remedy changes."""


def measures(finding, of):
    """Time at stake; operations that are gone, by how much others are shorter, and host time that is spared (ns)."""
    change = finding.change(of)
    saved = 0 if change.shorter is None else change.shorter.get_column("saved_ns").sum()
    spared = 0 if change.host is None else (change.host["end"] - change.host["start"]).sum()
    return finding.at_stake_ns, len(change.gone), saved, spared


def assert_told(found, stakes, *words):
    """What findings have at stake, and that the words of the first one have these parts."""
    assert [one.at_stake_ns for one in found] == stakes
    said = [f"{one.headline} {one.text.format(*one.names)} {one.action} {one.remedy} [{one.where}]" for one in found]
    assert [word for word in words if word not in said[0]] == []
