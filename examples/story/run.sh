#!/bin/sh
# The story from beginning to end, on a GPU: sh run.sh OUT
#
# Records before.py and after.py, finds the leak, proves the fix, holds the budget, and measures memory, the largest batch
# and speed before and after. All that docs/story.md shows comes from OUT. Takes a few minutes.
set -u
out=${1:?usage: run.sh OUT}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")" || exit 1
python=${PYTHON:-python}
vramlens() { "$python" -m vramlens "$@"; }

vramlens run -o "$out/before.vram" before.py >"$out/before.json" 2>"$out/before.err"
vramlens run -o "$out/after.vram" after.py >"$out/after.json" 2>"$out/after.err"
# As if the card had 4 GiB: the first of these runs out of memory.
for program in before after; do
    vramlens run -o "$out/$program-limited.vram" $program.py --limit-gib 4 --steps 40 --batch 4 \
        >"$out/$program-limited.json" 2>"$out/$program-limited.err"
done

cd "$out" || exit 1
cp "$OLDPWD/vram.toml" vram.toml
for file in before before-limited; do
    vramlens leaks "$file.vram" >"leaks-$file.txt" 2>&1
done
vramlens diff before.vram after.vram >diff.txt 2>&1
vramlens diff before-limited.vram after-limited.vram >diff-limited.txt 2>&1
vramlens diff before.vram after.vram --markdown >diff.md
vramlens diff before.vram after.vram --html -o diff.html
vramlens check before.vram >check-before.txt 2>&1
echo "exit code $?" >>check-before.txt
vramlens check after.vram >check-after.txt 2>&1
echo "exit code $?" >>check-after.txt
vramlens check before.vram --baseline after.vram --format github >check-github.txt 2>&1
vramlens check after.vram --update >update.txt 2>&1

cd "$OLDPWD" || exit 1
"$python" measure.py "$out/measured.json" --limit-gib 8 >/dev/null 2>"$out/measure.err"
"$python" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' >"$out/machine.txt" 2>&1
echo "written: $out"
