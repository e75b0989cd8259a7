# Writes OUT, a header with the commit of SOURCE and whether files differ from it, where that has changed: files of
# measurements name it. Run at every build (cmake -P).
set(commit unknown)
find_program(GIT_PROGRAM git)
if(GIT_PROGRAM AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT_PROGRAM} -C ${SOURCE} describe --always --abbrev=10 --exclude=* --dirty
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${found})
  endif()
endif()
set(text "#define CONVOY_COMMIT \"${commit}\"\n")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUT} "${text}")
endif()
