import subprocess
import sys


def test_import_brings_no_heavy_library() -> None:
    heavy = "[m for m in ('torch', 'monai', 'numpy', 'pydantic', 'rich') if m in sys.modules]"
    out = subprocess.run(
        [sys.executable, "-c", f"import sys, fedperl; print({heavy})"], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_library_names() -> None:
    import fedperl
    from fedperl.peers import committee_mean, profile, similarity_matrix, top_peers

    assert all(callable(f) for f in (fedperl.load_config, fedperl.train, committee_mean, profile, similarity_matrix))
    assert callable(top_peers)
