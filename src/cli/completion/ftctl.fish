# The word at the cursor as a program would get it: without quotation marks and backslashes.
function __ftctl_word
    set -l typed (commandline --current-token --cut-at-cursor)
    set -l plain (string unescape -- "$typed" 2>/dev/null)
    if test (count $plain) -eq 1
        set typed $plain
    end
    printf '%s\n' "$typed"
end
complete --keep-order --exclusive --command ftctl --arguments "(FTCTL_COMPLETE=fish ftctl -- (commandline --current-process --tokenize --cut-at-cursor) (__ftctl_word))"
