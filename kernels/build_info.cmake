# Fills build_info.cpp.in. configure_file leaves an unchanged output alone, so an unchanged identity compiles nothing.
execute_process(COMMAND git -c safe.directory=* describe --always --dirty --abbrev=12
  WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE COMMIT RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT status EQUAL 0 OR COMMIT STREQUAL "")
  set(COMMIT "unknown")
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
