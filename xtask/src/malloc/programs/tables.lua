local n = 60000 // tonumber(arg[1])
local t={} ; for r=1,8 do t={} for i=1,n do t[i]={i,tostring(i)..'x',{i*2}} end ; local s=0; for i,v in ipairs(t) do s=s+#v[2] end; local parts={} for i=1,20000 do parts[#parts+1]=string.format("%d:%s",i,("ab"):rep(i%50)) end; local z=table.concat(parts) print(s,#z) end
